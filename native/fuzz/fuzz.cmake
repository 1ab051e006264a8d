# Fuzz targets (clang's libFuzzer): cmake -DRB_FUZZ=ON -DRB_SANITIZE=ON -DRB_PYTHON=OFF with CXX=clang++; every fuzz_*.cpp here is one.
file(GLOB RB_FUZZ_SOURCES CONFIGURE_DEPENDS native/fuzz/fuzz_*.cpp)
foreach(source ${RB_FUZZ_SOURCES})
  get_filename_component(target ${source} NAME_WE)
  add_executable(${target} ${source})
  target_link_libraries(${target} PRIVATE rebar_core)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror -fsanitize=fuzzer)
  target_link_options(${target} PRIVATE -fsanitize=fuzzer)
endforeach()
