# `cmake --install`, and what cpack packs: PREFIX/bin/tokamak and what it finds relative to itself.
if(NOT TARGET tokamak)
  return()
endif()
install(TARGETS tokamak RUNTIME_DEPENDENCY_SET tokamak_libraries DESTINATION bin)
if(TOK_PORTABLE)
  foreach(level IN LISTS TOK_CPU_LEVELS)
    install(TARGETS tokamak-${level} DESTINATION libexec/tokamak)
  endforeach()
  foreach(part tokamak_mpi tokamak_gpu_part)
    if(TARGET ${part})
      install(TARGETS ${part} DESTINATION lib/tokamak)
    endif()
  endforeach()
  # glibc and GCC's libraries are on every machine that could run the program; libmpi and CUDA's are loaded when needed.
  install(RUNTIME_DEPENDENCY_SET tokamak_libraries DESTINATION lib/tokamak
    PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s)\\.so" "^lib(mpi|cuda|nvidia|cublas|cudnn|nccl|nvrtc)")
endif()

# Man pages and completion are what the program says of itself (tools/manual.py).
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(manual ${PROJECT_BINARY_DIR}/manual)
add_custom_command(OUTPUT ${manual}/man/man1/tokamak.1 DEPENDS tokamak ${PROJECT_SOURCE_DIR}/tools/manual.py
  COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/manual.py $<TARGET_FILE:tokamak> ${manual})
add_custom_target(manual DEPENDS ${manual}/man/man1/tokamak.1)
install(DIRECTORY ${manual}/man DESTINATION share)
install(FILES ${manual}/completion/tokamak.bash DESTINATION share/bash-completion/completions RENAME tokamak)
install(FILES ${manual}/completion/_tokamak DESTINATION share/zsh/site-functions)
install(FILES ${manual}/completion/tokamak.fish DESTINATION share/fish/vendor_completions.d)
install(DIRECTORY machines presets configs recipes DESTINATION share/tokamak)
install(DIRECTORY docs DESTINATION share/doc/tokamak PATTERN log EXCLUDE PATTERN pictures EXCLUDE)
install(FILES README.md LICENSE CHANGELOG.md DESTINATION share/doc/tokamak)

set(CPACK_PACKAGE_NAME tokamak)
set(CPACK_PACKAGE_CONTACT "The Tokamak developers <tokamak@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "pretrains Llama and GPT class language models on CPUs and NVIDIA GPUs")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz) # finds what the four programs have in common
set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# What the libraries of the package were linked with: Debian 12's.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.34), libgcc-s1 (>= 12), libstdc++6 (>= 12)")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libcurl4")
if(TOK_CUDA)
  # Of NVIDIA's repository; docs/installing.md says which of them is for what.
  string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" cuda "${CUDAToolkit_VERSION}")
  string(APPEND CPACK_DEBIAN_PACKAGE_SUGGESTS ", libcublas-${CMAKE_MATCH_1}-${CMAKE_MATCH_2}, cuda-nvrtc-${CMAKE_MATCH_1}-${CMAKE_MATCH_2}, "
    "libcudnn9-cuda-${CMAKE_MATCH_1}, libnccl2")
endif()
include(CPack)
