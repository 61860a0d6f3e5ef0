# tokamak_library(), tokamak_test(), tokamak_bench(), tokamak_find_library() and the one target that carries flags.

find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(GTest REQUIRED)
include(GoogleTest)

add_library(tokamak_flags INTERFACE)
target_compile_features(tokamak_flags INTERFACE cxx_std_20)
target_include_directories(tokamak_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/gen)
target_compile_options(tokamak_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
    # Fields left out of a designated initializer take their defaults: that is what the defaults are for.
    -Wno-missing-field-initializers
    # GCC 12 reports copies of std::string that cannot happen (GCC bug 105651).
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>>
  # One rounding per written operation: the same bits from every compiler and on every mesh.
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:$<TARGET_PROPERTY:TOK_FUSED_MULTIPLY_ADD>>>>:-ffp-contract=off>)
if(TOK_PORTABLE)
  # The folder of the build is no part of a package.
  target_compile_options(tokamak_flags INTERFACE -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
endif()
if(TOK_SANITIZE)
  target_compile_options(tokamak_flags INTERFACE
    # GCC 12 takes moved-from containers for uninitialized ones under sanitizers.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    -fsanitize=${TOK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(tokamak_flags INTERFACE -fsanitize=${TOK_SANITIZE})
endif()

if(TOK_OPENMP)
  # All files have the flag, those without loops too: it defines macros, which must be the same wherever headers are shared.
  # The shared library in portable builds too: oneDNN has that one, and a second one in the program would start threads
  # that the first does not know.
  set(suffixes ${CMAKE_FIND_LIBRARY_SUFFIXES})
  set(CMAKE_FIND_LIBRARY_SUFFIXES .so .a)
  find_package(OpenMP REQUIRED)
  set(CMAKE_FIND_LIBRARY_SUFFIXES ${suffixes})
  if(TOK_PORTABLE AND OpenMP_gomp_LIBRARY MATCHES "[.]a$")
    message(FATAL_ERROR "a portable build: wanted OpenMP's shared library, got ${OpenMP_gomp_LIBRARY}; remove ${PROJECT_BINARY_DIR}")
  endif()
  separate_arguments(openmp NATIVE_COMMAND "${OpenMP_CXX_FLAGS}")
  target_compile_options(tokamak_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${openmp}>)
endif()
if(TOK_FUZZ)
  target_compile_options(tokamak_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Headers that the build writes; clang-tidy needs them and nothing else.
add_custom_target(generated)

# tokamak_library(graph SOURCES a.cpp b.cpp DEPS core): one static library for each folder.
function(tokamak_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;LINK" ${ARGN})
  add_library(tokamak_${name} STATIC ${arg_SOURCES})
  list(TRANSFORM arg_DEPS PREPEND tokamak_)
  target_link_libraries(tokamak_${name} PUBLIC tokamak_flags fmt::fmt ${arg_DEPS} PRIVATE ${arg_LINK})
endfunction()

# tokamak_test(graph SOURCES a_test.cpp DEPS graph [LABEL unit] [LINK lib] [SHARDS 8] [ALONE]): one binary, one label. ctest
# runs each case in a process of its own, or all cases in that many processes (for thousands that take no time), beside
# other tests unless it is ALONE (it starts many processes and waits for them within bounds).
function(tokamak_test name)
  cmake_parse_arguments(arg "ALONE" "LABEL;SHARDS" "SOURCES;DEPS;LINK" ${ARGN})
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  add_executable(tokamak_${name}_test ${arg_SOURCES})
  list(TRANSFORM arg_DEPS PREPEND tokamak_)
  target_link_libraries(tokamak_${name}_test PRIVATE ${arg_DEPS} ${arg_LINK} GTest::gtest GTest::gtest_main)
  target_compile_definitions(tokamak_${name}_test PRIVATE TOK_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set(properties LABELS ${arg_LABEL} TIMEOUT 300 ENVIRONMENT TOKAMAK_CACHE=${PROJECT_BINARY_DIR}/test_cache)
  if(arg_ALONE)
    list(APPEND properties PROCESSORS 2)
  endif()
  if(NOT arg_SHARDS)
    gtest_discover_tests(tokamak_${name}_test TEST_PREFIX ${name}/ NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
                         PROPERTIES ${properties})
    return()
  endif()
  math(EXPR last "${arg_SHARDS} - 1")
  foreach(shard RANGE ${last})
    add_test(NAME ${name}/shard_${shard} COMMAND ${CMAKE_COMMAND} -E env
      GTEST_TOTAL_SHARDS=${arg_SHARDS} GTEST_SHARD_INDEX=${shard} $<TARGET_FILE:tokamak_${name}_test> --gtest_brief=1)
    set_tests_properties(${name}/shard_${shard} PROPERTIES ${properties})
  endforeach()
endfunction()

# tokamak_bench(tokenizer SOURCES tokenizer_bench.cpp DEPS tokenizer): google benchmark, smoke-run by ctest.
function(tokamak_bench name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;LINK" ${ARGN})
  find_package(benchmark REQUIRED)
  add_executable(tokamak_${name}_bench ${arg_SOURCES})
  list(TRANSFORM arg_DEPS PREPEND tokamak_)
  target_link_libraries(tokamak_${name}_bench PRIVATE ${arg_DEPS} ${arg_LINK} benchmark::benchmark benchmark::benchmark_main)
  target_compile_definitions(tokamak_${name}_bench PRIVATE TOK_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name}/bench_smoke COMMAND tokamak_${name}_bench --benchmark_min_time=0.001)
  set_tests_properties(${name}/bench_smoke PROPERTIES LABELS bench TIMEOUT 300)
endfunction()

# tokamak_find_library(tok_nccl nccl.h nccl PLACE...): a target, if the header and the library are there.
function(tokamak_find_library target header library)
  find_path(${target}_INCLUDE ${header} HINTS ${ARGN} PATH_SUFFIXES include)
  find_library(${target}_LIBRARY ${library} HINTS ${ARGN} PATH_SUFFIXES lib)
  if(${target}_INCLUDE AND ${target}_LIBRARY)
    add_library(${target} INTERFACE IMPORTED)
    target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE})
    target_link_libraries(${target} INTERFACE ${${target}_LIBRARY})
  endif()
endfunction()
