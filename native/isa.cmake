# One translation unit per instruction set, each with its own flags; the rest of the build stays at the target's baseline. A group of
# kernels in a folder of its own, native/cpu/GROUP/isa_*.cpp, has a unit of its own per instruction set, so that it builds alone.
foreach(isa scalar avx2 avx512 neon)
  file(GLOB RB_UNITS_${isa} CONFIGURE_DEPENDS native/cpu/isa_${isa}.cpp native/cpu/*/isa_${isa}.cpp)
endforeach()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(RB_AVX512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c -mprefer-vector-width=512)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND RB_AVX512 -Wno-maybe-uninitialized -Wno-uninitialized)  # GCC's own avx512fintrin.h, GCC bug 105593
  endif()
  set(RB_AVX2 -mavx2 -mfma -mf16c)
  if(RB_SANITIZE)
    # The scalar unit is the same source with every check; here addresses alone, or compiling takes many minutes.
    list(APPEND RB_AVX2 -fno-sanitize=undefined -O1)
    list(APPEND RB_AVX512 -fno-sanitize=undefined -O1)
    target_compile_definitions(rebar_core PRIVATE RB_SANITIZED)
  endif()
  set_source_files_properties(${RB_UNITS_avx2} PROPERTIES COMPILE_OPTIONS "${RB_AVX2}")
  set_source_files_properties(${RB_UNITS_avx512} PROPERTIES COMPILE_OPTIONS "${RB_AVX512}")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(RB_NEON -march=armv8.2-a+dotprod)
  set_source_files_properties(${RB_UNITS_neon} PROPERTIES COMPILE_OPTIONS "${RB_NEON}")
endif()
set(RB_SCALAR -DRB_ONE_LANE)
if(RB_SANITIZE)
  list(APPEND RB_SCALAR -O1) # -O2 vectorizes checked lanes for minutes
  set_source_files_properties(${RB_UNITS_scalar} PROPERTIES COMPILE_OPTIONS "-O1")
endif()

# Every source of native/cpu/training, once per instruction set: the flags and definitions come from here, a change compiles one stem.
file(GLOB RB_TRAINING_SOURCES CONFIGURE_DEPENDS native/cpu/training/*.cpp)
foreach(isa scalar avx2 avx512 neon)
  string(TOUPPER ${isa} flags)
  if(DEFINED RB_${flags})
    add_library(rebar_training_${isa} OBJECT ${RB_TRAINING_SOURCES})
    target_include_directories(rebar_training_${isa} PRIVATE native)
    target_compile_options(rebar_training_${isa} PRIVATE $<TARGET_PROPERTY:rebar_core,COMPILE_OPTIONS> ${RB_${flags}})
    target_compile_definitions(
      rebar_training_${isa} PRIVATE $<TARGET_PROPERTY:rebar_core,COMPILE_DEFINITIONS> RB_NS=${isa} "RB_VEC=\"cpu/vec_${isa}.h\"")
    target_sources(rebar_core PRIVATE $<TARGET_OBJECTS:rebar_training_${isa}>)
  endif()
endforeach()
