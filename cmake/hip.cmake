# HIP for AMD's GPUs. hipcc compiles the kernels by rules of our own: CMake's HIP language wants
# ROCm's folders, which a distribution's packages do not have. All else is the C++ compiler's.
set(TOK_HIP_ARCHITECTURES "gfx90a" CACHE STRING "The GPUs that kernels are compiled for, e.g. gfx90a;gfx942")
find_program(TOK_HIPCC hipcc HINTS ENV ROCM_PATH PATHS /opt/rocm PATH_SUFFIXES bin REQUIRED)
find_package(hip CONFIG REQUIRED HINTS ENV ROCM_PATH PATHS /opt/rocm)
# Debian 12 has neither; without them products are our own kernel's, and there is one rank.
tokamak_find_library(tok_hipblaslt hipblaslt/hipblaslt.h hipblaslt $ENV{ROCM_PATH} /opt/rocm)
tokamak_find_library(tok_rccl rccl/rccl.h rccl $ENV{ROCM_PATH} /opt/rocm)

set(TOK_HIP_OPTIONS -x hip -std=c++20 -DTOK_HIP -Wall -Wextra
  # What CUDA's kernels alone use, loops of unknown length, hipcc's own words for the linker.
  -Wno-unused-parameter -Wno-pass-failed -Wno-unused-command-line-argument
  # Products and sums of one expression are fused, as by nvcc; roundings that calls ask for stay.
  -ffp-contract=on)
foreach(architecture IN LISTS TOK_HIP_ARCHITECTURES)
  list(APPEND TOK_HIP_OPTIONS --offload-arch=${architecture})
endforeach()
foreach(folder ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/gen)
  list(APPEND TOK_HIP_OPTIONS -I${folder})
endforeach()

# tok_hip_objects(variable a.cu ...): their objects, in the variable. HIP_OPTIONS of a source come last.
function(tok_hip_objects out)
  string(TOUPPER "CMAKE_CXX_FLAGS_${CMAKE_BUILD_TYPE}" flags)
  separate_arguments(flags UNIX_COMMAND "${${flags}}")
  set(objects "")
  foreach(source IN LISTS ARGN)
    get_filename_component(name ${source} NAME_WE)
    get_filename_component(source ${source} ABSOLUTE)
    get_source_file_property(options ${source} HIP_OPTIONS)
    if(NOT options)
      set(options "")
    endif()
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.hip.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d
      COMMAND ${TOK_HIPCC} ${TOK_HIP_OPTIONS} ${flags} ${options} -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
      COMMENT "Compiling ${name} for ${TOK_HIP_ARCHITECTURES}" VERBATIM)
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE)
    list(APPEND objects ${object})
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
