# Tests of the C and C++ side.
#
#   nmc_add_test(NAME n SOURCES a.cpp [ARGS ..] [LABELS ..] [LIBRARIES ..] [TIMEOUT s] [SERIAL] [NO_ASAN] [NO_VALGRIND])
#       Builds a program against nanomc::nanomc and registers it three times: as `n`, as `n.asan` (compiled with
#       AddressSanitizer and UndefinedBehaviorSanitizer) and as `n.valgrind`.
#   nmc_add_program(NAME p SOURCES ..) and nmc_add_run(NAME n PROGRAM p ARGS ..)
#       The two halves of it, for programs that are run several times with different arguments.
#       `*_wrapper_noexc` is a further form of one body, which AddressSanitizer sees in `*_wrapper`: no tools. No valgrind for `*_wrapper`
#       itself: it is for the calls, and sees them in the other tests of the folder; those of a cluster it sees nowhere else.
#   nmc_add_crash_program(NAME p SOURCES ..)
#       A program against a library with crash points (src/base/point.rs); not where the library was built elsewhere.
#   nmc_add_control(NAME n EXPECT regex COMMAND ..)
#       A check that must fail: the command has to return non-zero AND print something that matches.
#
# Exit code 77 means skipped. NMC_TEST_TOOL is `asan` or `valgrind` in the environment of those runs, so that a test
# may take longer deadlines or fewer rounds. TIMEOUT is in seconds for the plain run (60); the tools get four times that.
# NO_ASAN and NO_VALGRIND need a comment that says why. Joining a world needs pidfd_open (syscall 434), which valgrind 3.19
# does not know and 3.24 does. With an old one the tests with the label `multiproc` are shown as disabled; others leave the
# parts out that join, and say so. -DVALGRIND=<path> chooses another valgrind.

find_package(Threads REQUIRED)
set(NMC_WARNINGS -Wall -Wextra -Wpedantic -Werror)
# Compiling takes longer than running: no optimisation, and lines for stack traces.
set(NMC_OPTIMIZE -O0 -g1)
set(NMC_FURTHER_FORM "_wrapper_noexc$")
set(NMC_SEEN_BY_VALGRIND "^(world|store|tier|ep|kv)_wrapper$|${NMC_FURTHER_FORM}")
set(NMC_SANITIZE -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O0 -g1)
set(NMC_ASAN_ENV
  "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:handle_segv=1"
  "UBSAN_OPTIONS=print_stacktrace=1" "NMC_TEST_TOOL=asan")

# clang compiles tests in half the time that gcc needs. gcc sees the examples, what an outside project builds, every header, and with the
# further forms of the wrappers all of their templates.
find_program(NMC_CLANG clang)
find_program(NMC_CLANGXX clang++)
if(NMC_CLANG AND NMC_CLANGXX AND NOT DEFINED NANOMC_TEST_CLANG)
  set(probe "${PROJECT_BINARY_DIR}/CMakeFiles/asan")
  file(WRITE "${probe}.cpp" "#include <string>\nint main() { return 0; }\n")
  execute_process(COMMAND "${NMC_CLANGXX}" -fsanitize=address,undefined "${probe}.cpp" -o "${probe}"
    RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
  if(result EQUAL 0)
    set(NANOMC_TEST_CLANG TRUE CACHE INTERNAL "clang can link with -fsanitize=address,undefined")
  else()
    set(NANOMC_TEST_CLANG FALSE CACHE INTERNAL "clang can link with -fsanitize=address,undefined")
  endif()
endif()
if(NANOMC_ASAN)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS "-fsanitize=address,undefined")
  check_cxx_source_compiles("int main() { return 0; }" NANOMC_ASAN_WORKS)
  unset(CMAKE_REQUIRED_FLAGS)
  if(NANOMC_TEST_CLANG)
    set(NANOMC_ASAN_WORKS TRUE)
  elseif(NOT NANOMC_ASAN_WORKS)
    message(WARNING "The compiler cannot link with -fsanitize=address,undefined: no .asan tests")
  endif()
endif()
if(NANOMC_VALGRIND)
  find_program(VALGRIND valgrind)
  if(NOT VALGRIND)
    message(WARNING "valgrind is not installed: no .valgrind tests")
  elseif(NOT DEFINED NANOMC_VALGRIND_PIDFD)
    set(probe "${PROJECT_BINARY_DIR}/CMakeFiles/pidfd")
    file(WRITE "${probe}.c" "#include <unistd.h>\nint main(void) { return syscall(434, getpid(), 0) < 0; }\n")
    try_compile(compiled "${PROJECT_BINARY_DIR}" SOURCES "${probe}.c" COPY_FILE "${probe}")
    execute_process(COMMAND "${VALGRIND}" --quiet "${probe}" RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
    if(result EQUAL 0)
      set(NANOMC_VALGRIND_PIDFD TRUE CACHE INTERNAL "valgrind knows pidfd_open")
    else()
      set(NANOMC_VALGRIND_PIDFD FALSE CACHE INTERNAL "valgrind knows pidfd_open")
      message(STATUS "This valgrind does not know pidfd_open: no .valgrind tests with several processes")
    endif()
  endif()
endif()
set(NMC_VALGRIND_RUN "${VALGRIND}" --quiet --fair-sched=yes --error-exitcode=99 --leak-check=full
  --errors-for-leak-kinds=definite # a forked child loses the threads that held pointers
  --child-silent-after-fork=no)

# Two thirds of compiling a test is reading headers of the standard library: they are read once for all. Not those of nanomc, lest one
# of them lacks an include and nobody notices.
file(WRITE "${PROJECT_BINARY_DIR}/CMakeFiles/headers.cpp" "")
function(nmc_read_headers_once program)
  string(REGEX MATCH "\\.asan$" variant "${program}")
  set(headers nmc_standard_headers${variant})
  if(NOT TARGET ${headers})
    add_library(${headers} OBJECT "${PROJECT_BINARY_DIR}/CMakeFiles/headers.cpp")
    nmc_compile(${headers} nanomc::nanomc)
    target_precompile_headers(${headers} PRIVATE <algorithm> <array> <atomic> <chrono> <filesystem> <functional> <map> <memory>
      <mutex> <set> <string> <thread> <utility> <vector>)
  endif()
  target_precompile_headers(${program} REUSE_FROM ${headers})
endfunction()

# How tests are compiled and what they are linked with; `program.asan` is instrumented.
function(nmc_compile program library)
  target_compile_features(${program} PRIVATE c_std_11 cxx_std_17)
  # A test that uses assert() must not lose it in a release build.
  target_compile_options(${program} PRIVATE ${NMC_WARNINGS} ${NMC_OPTIMIZE} -UNDEBUG)
  target_link_libraries(${program} PRIVATE ${library} Threads::Threads)
  if(program MATCHES "\\.asan$")
    target_compile_options(${program} PRIVATE ${NMC_SANITIZE})
    target_link_options(${program} PRIVATE ${NMC_SANITIZE})
  endif()
  if(NANOMC_TEST_CLANG AND NOT program MATCHES "${NMC_FURTHER_FORM}")
    # CMake leaves the standard out where it is the default of the compiler that it knows. valgrind reads no newer DWARF of clang,
    # for which the version alone would mean all that there is to say.
    target_compile_options(${program} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-std=gnu++17> "SHELL:-gdwarf-4 -g1")
    set(launcher sh "${NANOMC_ROOT}/cmake/another_compiler.sh")
    foreach(step COMPILER LINKER)
      set_target_properties(${program} PROPERTIES
        C_${step}_LAUNCHER "${launcher};${NMC_CLANG}" CXX_${step}_LAUNCHER "${launcher};${NMC_CLANGXX}")
    endforeach()
  endif()
endfunction()

function(nmc_add_program)
  cmake_parse_arguments(PARSE_ARGV 0 P "NO_ASAN" "NAME" "SOURCES;LIBRARIES")
  set(variants ${P_NAME})
  if(NANOMC_ASAN AND NANOMC_ASAN_WORKS AND NOT P_NO_ASAN AND NOT P_NAME MATCHES "${NMC_FURTHER_FORM}")
    list(APPEND variants ${P_NAME}.asan)
  endif()
  foreach(program ${variants})
    add_executable(${program} ${P_SOURCES})
    nmc_compile(${program} nanomc::nanomc)
    target_link_libraries(${program} PRIVATE ${P_LIBRARIES})
    if(P_SOURCES MATCHES "\\.cpp" AND NOT P_NAME MATCHES "${NMC_FURTHER_FORM}")
      nmc_read_headers_once(${program})
    endif()
  endforeach()
endfunction()

function(nmc_add_run)
  cmake_parse_arguments(PARSE_ARGV 0 R "SERIAL;NO_ASAN;NO_VALGRIND" "NAME;PROGRAM;TIMEOUT" "ARGS;LABELS")
  if(NOT R_TIMEOUT)
    set(R_TIMEOUT 60)
  endif()
  math(EXPR slow "4 * ${R_TIMEOUT}")
  add_test(NAME ${R_NAME} COMMAND ${R_PROGRAM} ${R_ARGS})
  set(all ${R_NAME})
  set_tests_properties(${R_NAME} PROPERTIES TIMEOUT ${R_TIMEOUT} LABELS "${R_LABELS}")
  if(TARGET ${R_PROGRAM}.asan AND NOT R_NO_ASAN)
    add_test(NAME ${R_NAME}.asan COMMAND ${R_PROGRAM}.asan ${R_ARGS})
    set_tests_properties(${R_NAME}.asan PROPERTIES TIMEOUT ${slow} LABELS "${R_LABELS};asan" ENVIRONMENT "${NMC_ASAN_ENV}")
    list(APPEND all ${R_NAME}.asan)
  endif()
  if(NANOMC_VALGRIND AND VALGRIND AND NOT R_NO_VALGRIND AND NOT R_NAME MATCHES "${NMC_SEEN_BY_VALGRIND}")
    add_test(NAME ${R_NAME}.valgrind COMMAND ${NMC_VALGRIND_RUN} $<TARGET_FILE:${R_PROGRAM}> ${R_ARGS})
    set_tests_properties(${R_NAME}.valgrind PROPERTIES
      TIMEOUT ${slow} LABELS "${R_LABELS};valgrind" ENVIRONMENT "NMC_TEST_TOOL=valgrind")
    if("multiproc" IN_LIST R_LABELS AND NOT NANOMC_VALGRIND_PIDFD)
      set_tests_properties(${R_NAME}.valgrind PROPERTIES DISABLED TRUE)
    endif()
    list(APPEND all ${R_NAME}.valgrind)
  endif()
  set_tests_properties(${all} PROPERTIES SKIP_RETURN_CODE 77)
  if(R_SERIAL)
    set_tests_properties(${all} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# A library with points at which it ends itself: what `kill -9` at named points needs. It is the one that cargo's own tests are built
# with, and never installed.
if(NOT NANOMC_PREBUILT)
  set(NMC_CRASH "${PROJECT_BINARY_DIR}/crash")
  add_custom_target(nanomc_crash ALL
    COMMAND "${CMAKE_COMMAND}" -E env "RUSTC_WORKSPACE_WRAPPER=${NANOMC_ROOT}/scripts/linted.sh"
      "${CARGO}" test --locked --quiet --workspace --no-run --target-dir "${NANOMC_ROOT}/target"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${NMC_CRASH}"
    COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${NANOMC_ROOT}/target/debug/deps/libnanomc.so" "${NMC_CRASH}/libnanomc.so"
    COMMAND "${CMAKE_COMMAND}" -E create_symlink libnanomc.so "${NMC_CRASH}/libnanomc.so.${PROJECT_VERSION_MAJOR}"
    BYPRODUCTS "${NMC_CRASH}/libnanomc.so"
    WORKING_DIRECTORY "${NANOMC_ROOT}" COMMENT "libnanomc with crash points" USES_TERMINAL VERBATIM)
  add_dependencies(nanomc_crash nanomc_build) # cargo's own tests may be built just now: what takes longest does not wait for that
endif()
function(nmc_add_crash_program)
  cmake_parse_arguments(PARSE_ARGV 0 P "" "NAME" "SOURCES")
  add_executable(${P_NAME} ${P_SOURCES})
  add_dependencies(${P_NAME} nanomc_crash)
  nmc_compile(${P_NAME} "${NMC_CRASH}/libnanomc.so")
  nmc_read_headers_once(${P_NAME})
  target_include_directories(${P_NAME} SYSTEM PRIVATE "${NANOMC_ROOT}/include")
  set_target_properties(${P_NAME} PROPERTIES BUILD_RPATH "${NMC_CRASH}")
endfunction()

function(nmc_add_test)
  cmake_parse_arguments(PARSE_ARGV 0 T "SERIAL;NO_ASAN;NO_VALGRIND" "NAME;TIMEOUT" "SOURCES;ARGS;LABELS;LIBRARIES")
  set(flags)
  foreach(flag SERIAL NO_ASAN NO_VALGRIND)
    if(T_${flag})
      list(APPEND flags ${flag})
    endif()
  endforeach()
  set(build_flags ${flags})
  list(FILTER build_flags INCLUDE REGEX NO_ASAN)
  nmc_add_program(NAME ${T_NAME} SOURCES ${T_SOURCES} LIBRARIES ${T_LIBRARIES} ${build_flags})
  nmc_add_run(NAME ${T_NAME} PROGRAM ${T_NAME} ARGS ${T_ARGS} LABELS ${T_LABELS} TIMEOUT "${T_TIMEOUT}" ${flags})
endfunction()

function(nmc_add_control)
  cmake_parse_arguments(PARSE_ARGV 0 C "" "NAME;EXPECT" "COMMAND;LABELS;ENVIRONMENT")
  add_test(NAME ${C_NAME} COMMAND "${CMAKE_COMMAND}" "-DEXPECT=${C_EXPECT}"
    -P "${NANOMC_ROOT}/cmake/expect_failure.cmake" -- ${C_COMMAND})
  set_tests_properties(${C_NAME} PROPERTIES TIMEOUT 60 LABELS "${C_LABELS};control" ENVIRONMENT "${C_ENVIRONMENT}"
    SKIP_REGULAR_EXPRESSION "^-- skipped: ")
endfunction()
