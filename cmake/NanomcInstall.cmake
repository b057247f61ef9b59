# cmake --install target/cmake --prefix <where>, and the TGZ and DEB packages that cpack makes of the same files.
# Nothing that is installed contains an absolute path, so that the folder can be moved.

set(CMAKE_INSTALL_LIBDIR lib CACHE STRING "Where libraries go, below the prefix")
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(nmc_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/nanomc")

if(NANOMC_PREBUILT)
  set(nmc_optional OPTIONAL) # a ready library may come without the archive and without the programs
endif()
install(FILES "${NANOMC_SHARED}" "${NANOMC_LIBDIR}/${nmc_soname}" "${NANOMC_LIBDIR}/libnanomc.so"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES "${NANOMC_OUT}/libnanomc.a" DESTINATION "${CMAKE_INSTALL_LIBDIR}" ${nmc_optional})
install(PROGRAMS "${NANOMC_OUT}/nmc" "${NANOMC_OUT}/nanomc-master" DESTINATION "${CMAKE_INSTALL_BINDIR}" ${nmc_optional})
# The same program under the name that users of Mooncake Store start, and as a service of systemd.
if(NOT NANOMC_PREBUILT OR EXISTS "${NANOMC_OUT}/nanomc-master")
  file(CREATE_LINK nanomc-master "${PROJECT_BINARY_DIR}/mooncake_master" SYMBOLIC)
  install(FILES "${PROJECT_BINARY_DIR}/mooncake_master" DESTINATION "${CMAKE_INSTALL_BINDIR}")
  install(FILES "${NANOMC_ROOT}/crates/nanomc-master/nanomc-master.service" DESTINATION lib/systemd/system)
endif()
install(FILES "${NANOMC_ROOT}/include/nanomc.h" "${NANOMC_ROOT}/include/nanomc.hpp"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY "${NANOMC_ROOT}/include/nanomc" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
# Side by side as in the source tree, so that their links lead somewhere; the examples are built against the installed library.
install(FILES "${NANOMC_ROOT}/LICENSE" "${NANOMC_ROOT}/README.md" "${NANOMC_ROOT}/CHANGELOG.md"
  "${NANOMC_ROOT}/CONTRIBUTING.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY "${NANOMC_ROOT}/docs" "${NANOMC_ROOT}/cpp_examples" "${NANOMC_ROOT}/proto" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
  PATTERN Doxyfile EXCLUDE PATTERN __pycache__ EXCLUDE)
# Debug information and the compiler's bitcode are nine tenths of the libraries; who needs them finds them in target/release.
install(CODE "
  file(GLOB files \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/libnanomc.a\"
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/libnanomc.so.${PROJECT_VERSION}\"
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/nmc\"
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/nanomc-master\")
  if(files AND NOT \"${CMAKE_STRIP}\" STREQUAL \"\")
    execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd
      \${files} COMMAND_ERROR_IS_FATAL ANY)
  endif()")

configure_package_config_file(cmake/nanomcConfig.cmake.in "${PROJECT_BINARY_DIR}/nanomcConfig.cmake"
  INSTALL_DESTINATION "${nmc_package_dir}" PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
# A release that breaks the ABI changes the soname, which is the major version.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/nanomcConfigVersion.cmake" COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/nanomcConfig.cmake" "${PROJECT_BINARY_DIR}/nanomcConfigVersion.cmake"
  DESTINATION "${nmc_package_dir}")

file(RELATIVE_PATH nmc_pc_to_prefix "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
list(TRANSFORM NANOMC_STATIC_NEEDS PREPEND "-l" OUTPUT_VARIABLE nmc_pc_private)
list(JOIN nmc_pc_private " " nmc_pc_private)
configure_file(cmake/nanomc.pc.in "${PROJECT_BINARY_DIR}/nanomc.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/nanomc.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME nanomc)
set(CPACK_PACKAGE_VENDOR "The nanomc authors")
set(CPACK_PACKAGE_CONTACT "The nanomc authors <nanomc@example.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE "${NANOMC_ROOT}/LICENSE")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_FILE_NAME "nanomc-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
find_program(NANOMC_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(NANOMC_SHLIBDEPS)
if(NANOMC_SHLIBDEPS)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
endif()
if(PROJECT_IS_TOP_LEVEL)
  include(CPack)
endif()
