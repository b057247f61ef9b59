# The imported targets nanomc::nanomc (shared) and nanomc::static, built by cargo or taken from NANOMC_PREBUILT. The target
# nanomc_build builds them together with nmc and nanomc-master: built apart, cargo would compile the library for each anew,
# because the features of what they share differ.
# NANOMC_OUT is where cargo leaves its files; NANOMC_LIBDIR holds the shared library under its versioned names, as
# programs look for its soname.

set(NANOMC_ROOT "${PROJECT_SOURCE_DIR}")
set(NANOMC_LIBDIR "${PROJECT_BINARY_DIR}/lib")
set(NANOMC_SHARED "${NANOMC_LIBDIR}/libnanomc.so.${PROJECT_VERSION}")
set(nmc_soname "libnanomc.so.${PROJECT_VERSION_MAJOR}")
# What `cargo rustc --release --lib --crate-type staticlib -- --print native-static-libs` says.
set(NANOMC_STATIC_NEEDS gcc_s util rt pthread m dl c)

if(NANOMC_PREBUILT)
  set(NANOMC_OUT "${NANOMC_PREBUILT}")
  if(NOT EXISTS "${NANOMC_OUT}/libnanomc.so")
    message(FATAL_ERROR "NANOMC_PREBUILT: there is no libnanomc.so in ${NANOMC_OUT}")
  endif()
  set(nmc_build)
else()
  find_program(CARGO cargo HINTS "$ENV{HOME}/.cargo/bin")
  if(NOT CARGO)
    message(FATAL_ERROR "cargo is not installed; install Rust, or give -DNANOMC_PREBUILT=<folder with libnanomc.so>")
  endif()
  set(NANOMC_OUT "${NANOMC_ROOT}/target/release")
  # With the link a program linked with -L target/release finds the library there.
  set(nmc_build COMMAND "${CARGO}" build --release --locked --quiet --workspace --target-dir "${NANOMC_ROOT}/target"
      COMMAND "${CMAKE_COMMAND}" -E create_symlink libnanomc.so "${NANOMC_OUT}/${nmc_soname}")
endif()

# cargo knows itself when there is nothing to do. Copying only what differs keeps programs from being linked again.
add_custom_target(nanomc_build ALL ${nmc_build}
  COMMAND "${CMAKE_COMMAND}" -E make_directory "${NANOMC_LIBDIR}"
  COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${NANOMC_OUT}/libnanomc.so" "${NANOMC_SHARED}"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink "libnanomc.so.${PROJECT_VERSION}" "${NANOMC_LIBDIR}/${nmc_soname}"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink "${nmc_soname}" "${NANOMC_LIBDIR}/libnanomc.so"
  BYPRODUCTS "${NANOMC_SHARED}"
  WORKING_DIRECTORY "${NANOMC_ROOT}" COMMENT "libnanomc, nmc, nanomc-master" USES_TERMINAL VERBATIM)

add_library(nanomc::nanomc SHARED IMPORTED GLOBAL)
set_target_properties(nanomc::nanomc PROPERTIES
  IMPORTED_LOCATION "${NANOMC_SHARED}"
  IMPORTED_SONAME "${nmc_soname}"
  INTERFACE_INCLUDE_DIRECTORIES "${NANOMC_ROOT}/include")
add_dependencies(nanomc::nanomc nanomc_build)

if(NOT NANOMC_PREBUILT OR EXISTS "${NANOMC_OUT}/libnanomc.a")
  add_library(nanomc::static STATIC IMPORTED GLOBAL)
  set_target_properties(nanomc::static PROPERTIES
    IMPORTED_LOCATION "${NANOMC_OUT}/libnanomc.a"
    INTERFACE_INCLUDE_DIRECTORIES "${NANOMC_ROOT}/include"
    INTERFACE_LINK_LIBRARIES "${NANOMC_STATIC_NEEDS}")
  add_dependencies(nanomc::static nanomc_build)
endif()
