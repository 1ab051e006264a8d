# Found by the glob in CMakeLists.txt.
add_executable(test_sample native/sampling/tests/test_sample.cpp)
target_link_libraries(test_sample PRIVATE rebar_core)
target_compile_options(test_sample PRIVATE -Wall -Wextra -Werror)
add_test(NAME sample COMMAND test_sample)
