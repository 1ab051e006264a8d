# Included from CMakeLists.txt with RB_TESTS.
add_executable(replay_fuzz_tokenizer native/text/tests/replay_fuzz.cpp native/fuzz/fuzz_tokenizer.cpp)
target_link_libraries(replay_fuzz_tokenizer PRIVATE rebar_core)
target_compile_options(replay_fuzz_tokenizer PRIVATE -Wall -Wextra -Werror)
add_test(NAME tokenizer_fuzz_replay COMMAND replay_fuzz_tokenizer)
