# Jobs under faults (label faults): CI draws some of the cases at each commit, `make faults` runs all.
add_library(tokamak_fault_shim MODULE faults/fault_shim.cpp)
target_compile_features(tokamak_fault_shim PRIVATE cxx_std_20)
target_link_libraries(tokamak_fault_shim PRIVATE ${CMAKE_DL_LIBS})
add_library(tokamak_fault_run STATIC faults/fault_run.cpp)
target_link_libraries(tokamak_fault_run PUBLIC tokamak_training_run GTest::gtest)
target_include_directories(tokamak_fault_run PRIVATE ${PROJECT_BINARY_DIR}/gen)
add_dependencies(tokamak_fault_run tokamak_commit)
target_compile_definitions(tokamak_fault_run PRIVATE
  TOK_PROGRAM="$<TARGET_FILE:tokamak>" TOK_FAULT_SHIM="$<TARGET_FILE:tokamak_fault_shim>")

# tokamak_faults(process): faults/process_faults_test.cpp, in the binary tokamak_process_faults_test.
function(tokamak_faults name)
  tokamak_test(${name}_faults SOURCES faults/${name}_faults_test.cpp DEPS fault_run LABEL faults ALONE LINK ${ARGN})
  target_compile_definitions(tokamak_${name}_faults_test PRIVATE TOK_PROGRAM="$<TARGET_FILE:tokamak>")
  add_dependencies(tokamak_${name}_faults_test tokamak tokamak_fault_shim)
endfunction()

tokamak_faults(process)
tokamak_faults(hang)
tokamak_faults(signal)
tokamak_faults(hosts)
tokamak_faults(storage tokamak_checkpoint)
