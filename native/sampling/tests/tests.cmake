# Found by the glob in CMakeLists.txt.
add_executable(test_sample native/sampling/tests/test_sample.cpp)
target_link_libraries(test_sample PRIVATE rebar_core)
target_compile_options(test_sample PRIVATE -Wall -Wextra -Werror)
add_test(NAME sample COMMAND test_sample)
add_executable(test_lookup native/sampling/tests/test_lookup.cpp)
target_link_libraries(test_lookup PRIVATE rebar_core)
target_compile_options(test_lookup PRIVATE -Wall -Wextra -Werror)
add_test(NAME lookup COMMAND test_lookup)
