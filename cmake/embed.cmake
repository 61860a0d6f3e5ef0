# tokamak_embed(preset_files NAMESPACE tokamak FUNCTION preset_files FOLDER presets): a source file, in the variable
# preset_files, that defines `std::span<const EmbeddedFile> preset_files()` (core/embedded.h) over the folder's files of that SUFFIX
# (toml by default).
function(tokamak_embed out)
  cmake_parse_arguments(arg "" "NAMESPACE;FUNCTION;FOLDER;SUFFIX" "" ${ARGN})
  if(NOT arg_SUFFIX)
    set(arg_SUFFIX toml)
  endif()
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${arg_FOLDER}/*.${arg_SUFFIX})
  list(SORT files)
  set(rows "")
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME)
    file(READ ${file} text)
    string(APPEND rows "    {\"${name}\", R\"embedded(${text})embedded\"sv},\n")
  endforeach()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${out}_embedded.cpp)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"#include <array>

#include \"tokamak/core/embedded.h\"

#pragma GCC diagnostic ignored \"-Woverlength-strings\"

namespace ${arg_NAMESPACE} {

std::span<const EmbeddedFile> ${arg_FUNCTION}();

std::span<const EmbeddedFile> ${arg_FUNCTION}() {
  using namespace std::string_view_literals;
  static constexpr auto kFiles = std::to_array<EmbeddedFile>({
${rows}  });
  return kFiles;
}

}  // namespace ${arg_NAMESPACE}
")
  set(${out} ${source} PARENT_SCOPE)
endfunction()
