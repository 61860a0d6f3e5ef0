# tokamak_embed(preset_files NAMESPACE tokamak FUNCTION preset_files FOLDER presets): a source file, in the variable
# preset_files, that defines `std::span<const EmbeddedFile> preset_files()` (core/embedded.h) over the folder's TOML files,
# or over the one file that FILE names in place of FOLDER.
function(tokamak_embed out)
  cmake_parse_arguments(arg "" "NAMESPACE;FUNCTION;FOLDER;FILE" "" ${ARGN})
  if(arg_FILE)
    set(files ${arg_FILE})
  else()
    file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${arg_FOLDER}/*.toml)
  endif()
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
