# Parquet::parquet_shared, if there is one: of an installed Arrow C++ library, else of Python's wheel pyarrow,
# which tools/setup.sh unpacks. It carries the same libraries and their headers, but nothing that CMake reads.
find_package(Arrow QUIET)
find_package(Parquet QUIET)
if(TARGET Parquet::parquet_shared)
  return()
endif()

set(TOK_ARROW ${PROJECT_SOURCE_DIR}/build/arrow CACHE PATH "Apache Arrow as tools/setup.sh unpacks it: include, lib, licenses")
if(NOT EXISTS ${TOK_ARROW}/lib/complete)
  message(WARNING "no Apache Arrow C++ library, so Parquet files will not be read: run tools/setup.sh build, "
    "or install libparquet-dev where your system has it")
  return()
endif()
file(GLOB arrow_library ${TOK_ARROW}/lib/libarrow.so.*)
file(GLOB parquet_library ${TOK_ARROW}/lib/libparquet.so.*)
add_library(Arrow::arrow_shared SHARED IMPORTED)
set_target_properties(Arrow::arrow_shared PROPERTIES
  IMPORTED_LOCATION ${arrow_library} INTERFACE_INCLUDE_DIRECTORIES ${TOK_ARROW}/include)
add_library(Parquet::parquet_shared SHARED IMPORTED)
set_target_properties(Parquet::parquet_shared PROPERTIES
  IMPORTED_LOCATION ${parquet_library} INTERFACE_LINK_LIBRARIES Arrow::arrow_shared)
# What an installed program takes with it.
set(TOK_ARROW_LIBRARIES ${arrow_library} ${parquet_library} CACHE INTERNAL "")
