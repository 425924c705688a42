# SPDX-License-Identifier: MIT
include(CMakePackageConfigHelpers)

set(posenc_cmake_dir ${CMAKE_INSTALL_DATADIR}/cmake/posenc)
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
install(TARGETS posenc EXPORT posencTargets)
install(EXPORT posencTargets NAMESPACE posenc:: DESTINATION ${posenc_cmake_dir})

configure_package_config_file(packaging/posencConfig.cmake.in posencConfig.cmake
  INSTALL_DESTINATION ${posenc_cmake_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(posencConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/posencConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/posencConfigVersion.cmake
  cmake/posenc-components.cmake
  DESTINATION ${posenc_cmake_dir})

# In a .pc file the include directory may be absolute or lie under the prefix.
cmake_path(IS_ABSOLUTE CMAKE_INSTALL_INCLUDEDIR posenc_includedir_is_absolute)
if(posenc_includedir_is_absolute)
  set(POSENC_PC_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR})
else()
  set(POSENC_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(packaging/posenc.pc.in posenc.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/posenc.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
