# TOK_EXTRA names a folder with extra.def, a list like ops.def: a line "family SOURCE NAME" or "dataset SOURCE NAME" for each
# object that a source of the folder defines in namespace tokamak.
if(TOK_EXTRA)
  get_filename_component(extra_folder "${TOK_EXTRA}" ABSOLUTE)
  if(NOT EXISTS ${extra_folder}/extra.def)
    message(FATAL_ERROR "TOK_EXTRA = ${TOK_EXTRA}: wanted a folder with extra.def; docs/adding.md describes it")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${extra_folder}/extra.def)
  file(STRINGS ${extra_folder}/extra.def extra_lines REGEX "^[^#]")
  foreach(line IN LISTS extra_lines)
    if(NOT line MATCHES "^(family|dataset) +[^ ]+ +[A-Za-z_][A-Za-z0-9_]*$")
      message(FATAL_ERROR "${extra_folder}/extra.def: wanted \"family SOURCE NAME\" or \"dataset SOURCE NAME\", got \"${line}\"")
    endif()
  endforeach()
endif()

# tokamak_extra(out family "const Family" HEADER): the sources that extra.def lists of this kind, and one that defines
# extra_families() (or extra_datasets()) over their objects, in the variable out. A table keeps the linker from dropping
# what nothing else names.
function(tokamak_extra out kind type header)
  string(REPLACE y ies plural ${kind})
  if(plural STREQUAL kind)
    set(plural ${kind}s)
  endif()
  set(sources "")
  set(declared "")
  set(rows "")
  foreach(line IN LISTS extra_lines)
    if(line MATCHES "^${kind} +([^ ]+) +(.+)$")
      list(APPEND sources ${extra_folder}/${CMAKE_MATCH_1})
      string(APPEND declared "extern ${type} ${CMAKE_MATCH_2};\n")
      string(APPEND rows "&${CMAKE_MATCH_2}, ")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES sources)
  set(table ${CMAKE_CURRENT_BINARY_DIR}/extra_${plural}.cpp)
  set(span "std::span<${type}* const>")
  if(rows)
    set(body "  static constexpr ${type}* kExtra[] = {${rows}};\n  return kExtra;")
  else()
    set(body "  return {};")
  endif()
  file(CONFIGURE OUTPUT ${table} @ONLY CONTENT "#include \"${header}\"

namespace tokamak {

${declared}
${span} extra_${plural}() {
${body}
}

}  // namespace tokamak
")
  set(${out} ${sources} ${table} PARENT_SCOPE)
endfunction()
