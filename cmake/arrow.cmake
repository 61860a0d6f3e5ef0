# Parquet::parquet_shared: of an installed Arrow C++ library, else of Python's package pyarrow, whose
# wheel carries the same libraries and their headers, but nothing that CMake reads. The wheel's libraries
# export what they bundle (simdjson, OpenSSL): they must come after the system's on a link line.
find_package(Arrow QUIET)
find_package(Parquet QUIET)
if(TARGET Parquet::parquet_shared)
  return()
endif()

find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import pyarrow; print(pyarrow.get_include(), pyarrow.get_library_dirs()[0], sep=';')"
  OUTPUT_VARIABLE pyarrow OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "TOK_PARQUET: no Apache Arrow C++ library: install libparquet-dev where your system has it, or "
    "`pip install pyarrow` and name that Python with -DPython3_EXECUTABLE=")
endif()
list(GET pyarrow 0 headers)
list(GET pyarrow 1 folder)
file(GLOB arrow_library ${folder}/libarrow.so.*)
file(GLOB parquet_library ${folder}/libparquet.so.*)
message(STATUS "Parquet by ${parquet_library}")

add_library(Arrow::arrow_shared SHARED IMPORTED)
set_target_properties(Arrow::arrow_shared PROPERTIES
  IMPORTED_LOCATION ${arrow_library} INTERFACE_INCLUDE_DIRECTORIES ${headers})
add_library(Parquet::parquet_shared SHARED IMPORTED)
set_target_properties(Parquet::parquet_shared PROPERTIES
  IMPORTED_LOCATION ${parquet_library} INTERFACE_LINK_LIBRARIES Arrow::arrow_shared)
