# Native tests: plain executables on the kernels, without Python. `ctest --test-dir BUILD`; RB_SANITIZE=ON runs them under sanitizers.
add_executable(
  rebar_kernel_tests
  native/tests/main.cpp
  native/tests/support.cpp
  native/tests/reference.cpp
  native/tests/test_attention.cpp
  native/tests/test_attention_gradient.cpp
  native/tests/test_cache.cpp
  native/tests/test_cut_guard.cpp
  native/tests/test_image.cpp
  native/tests/test_image_layers.cpp
  native/tests/test_lora.cpp
  native/tests/test_loss.cpp
  native/tests/test_math.cpp
  native/tests/test_matmul.cpp
  native/tests/test_pack.cpp
  native/tests/test_png.cpp
  native/tests/test_pool.cpp
  native/tests/test_probe.cpp
  native/tests/test_rows.cpp
  native/tests/test_training.cpp
  native/tests/test_training_matmul.cpp
)
target_link_libraries(rebar_kernel_tests PRIVATE rebar_core)
target_compile_options(rebar_kernel_tests PRIVATE -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno)
foreach(area attention cache cut_guard image lora math matmul pack png pool probe rows training)
  add_test(NAME kernels_${area} COMMAND rebar_kernel_tests ${area})
endforeach()

add_executable(rebar_bench_matmul EXCLUDE_FROM_ALL native/tests/bench_matmul.cpp native/tests/support.cpp)
target_link_libraries(rebar_bench_matmul PRIVATE rebar_core)
target_compile_options(rebar_bench_matmul PRIVATE -Wall -Wextra -Werror -ffp-contract=off)

add_executable(rebar_bench_training EXCLUDE_FROM_ALL native/tests/bench_training.cpp native/tests/support.cpp)
target_link_libraries(rebar_bench_training PRIVATE rebar_core)
target_compile_options(rebar_bench_training PRIVATE -Wall -Wextra -Werror -ffp-contract=off)

# One step of a small decoder: tools/count_steps.py counts its instructions.
add_executable(rebar_count_step native/tests/count_step.cpp native/tests/support.cpp)
target_link_libraries(rebar_count_step PRIVATE rebar_core)
target_compile_options(rebar_count_step PRIVATE -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno)
