# What ./test does, phase by phase; read by ./test after environment.sh. A failed check is shown at once and counted; the
# others still run, so that one start tells everything. The last line says how many passed.

passed=0
failed=0
export COVERAGE_FILE="$root/build/coverage"

# The development packages, once per pyproject.toml and constraints.txt.
prepare_development() {
  wanted=$(cd "$root" && cat pyproject.toml constraints.txt | sha256sum)
  [ "$(cat "$venv/development.stamp" 2>/dev/null)" = "$wanted" ] && return 0
  mkdir -p "$logs"
  (
    flock 9
    cd "$root"
    : >"$venv/installing"
    phase "development packages" development install_packages "[dev]"
    rm -f "$venv/installing"
    echo "$wanted" >"$venv/development.stamp"
  ) 9>"$root/build/setup.lock" || exit 1
}

# check TITLE LOG COMMAND...: as `phase`, but goes on after a failure.
check() {
  if (phase "$@"); then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

finish() {
  say "all of it took $(since "$started")"
  printf '%s passed, %s failed\n' "$passed" "$failed"
  [ "$failed" -eq 0 ]
}

native_sources() {
  git ls-files -z -- 'native/*.h' 'native/*.cpp' 'lab/*.h' 'lab/*.cpp' 2>/dev/null ||
    find native lab -name '*.h' -print0 -o -name '*.cpp' -print0
}

format_sources() {
  "$bin/ruff" check --quiet --fix-only . && "$bin/ruff" format . && native_sources | xargs -0 "$bin/clang-format" -i
}

native_format() { native_sources | xargs -0 "$bin/clang-format" --dry-run --Werror; }

check_sources() {
  started=$(now)
  check "ruff" ruff "$bin/ruff" check --output-format concise .
  check "ruff format" ruff-format "$bin/ruff" format --check .
  check "clang-format" clang-format native_format
  check "mypy strict" mypy "$bin/mypy" --cache-dir build/mypy
  check "import law" imports "$bin/lint-imports" --no-cache
}

# Analyses take most of a second a file: only those whose text, headers or rules changed since they last passed.
native_lint() {
  PATH=$bin:$PATH
  rules=$(cat .clang-tidy native/*.h native/*/*.h | sha256sum | cut -c 1-16)
  mkdir -p build/tidy
  native_sources | tr '\0' '\n' | grep -E '^native/.*\.cpp$' | grep -Ev '(tests|fuzz)/' >build/tidy/sources
  : >build/tidy/todo
  while read -r file; do
    key=$rules-$(sha256sum <"$file" | cut -c 1-32)
    [ -f "build/tidy/$key" ] || printf '%s %s\n' "$file" "build/tidy/$key" >>build/tidy/todo
  done <build/tidy/sources
  xargs -r -L 1 -P "$(nproc)" sh -c 'clang-tidy --quiet -p build/native "$0" && : >"$1"' <build/tidy/todo
}

# native_tests FOLDER CMAKE_OPTION...: builds and runs them with ctest. build/native, where ./run builds the module, has
# all but the tests already.
native_tests() {
  folder=build/$1
  shift
  PATH=$bin:$PATH
  launcher=
  ! command -v ccache >/dev/null 2>&1 || launcher=-DCMAKE_CXX_COMPILER_LAUNCHER=ccache
  find_compiler
  configure() { CXX=$compiler cmake -S . -B "$folder" -G Ninja -DPython_EXECUTABLE="$bin/python" -DRB_TESTS=ON $launcher "$@"; }
  { configure "$@" || configure --fresh "$@"; } && cmake --build "$folder" &&
    ctest --test-dir "$folder" --output-on-failure --no-tests=error
}

# Optimized a little: AVX-512 code without any takes minutes to run, with all of it minutes to compile.
sanitized_tests() {
  native_tests sanitized -DRB_PYTHON=OFF -DRB_SANITIZE=ON -DRB_WERROR=ON -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_CXX_FLAGS_DEBUG=-O1
}

# Coverage guided where clang and its runtime are at hand; `apt-get install clang` brings both.
fuzz_smoke() {
  PATH=$bin:$PATH
  configure() { CXX=$clang cmake -S . -B build/fuzz -G Ninja -DRB_FUZZ=ON -DRB_PYTHON=OFF -DRB_SANITIZE=ON \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 "$@"; }
  { configure || configure --fresh; } && cmake --build build/fuzz || return 1
  ran=0
  for target in build/fuzz/fuzz_*; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    corpus=build/corpus/${target##*/}
    mkdir -p "$corpus"
    "$target" -max_total_time="${FUZZ_SECONDS:-5}" -print_final_stats=1 "$corpus" || return 1
    ran=$((ran + 1))
  done
  [ "$ran" -gt 0 ]
}

has_fuzzer() {
  for clang in clang++ $(cd /usr/bin && ls -r clang++-* 2>/dev/null); do
    echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
      "$clang" -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null && return 0
  done
  return 1
}

# Instructions of one step against what was recorded: the same on a busy machine as on a quiet one.
count_steps() { "$bin/python" tools/count_steps.py build/native/rebar_count_step; }

offer_valgrind() {
  command -v valgrind >/dev/null 2>&1 && return 0
  if [ "${CI:-}" = true ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    (phase "valgrind for instruction counts" valgrind install_valgrind) && command -v valgrind >/dev/null 2>&1 && return 0
  fi
  say "instructions of a step: left out, valgrind is not here (apt-get install valgrind)"
  return 1
}

install_valgrind() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -q -y --no-install-recommends valgrind
}

# A system package is installed only by root in CI; anybody else is told.
offer_fuzzer() {
  has_fuzzer && return 0
  if [ "${CI:-}" = true ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    (phase "clang for the fuzz targets" clang install_clang) && has_fuzzer && return 0
  fi
  say "fuzz targets: left out, clang++ with libFuzzer is not here (apt-get install clang)"
  return 1
}

install_clang() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -q -y --no-install-recommends clang 'libclang-rt-*-dev'
}

# What deploy/ holds is tested in the real proxies where they are; in CI they are.
offer_proxies() {
  command -v nginx >/dev/null 2>&1 && command -v caddy >/dev/null 2>&1 && return 0
  if [ "${CI:-}" = true ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    (phase "nginx and caddy for deploy/" proxies install_proxies) && return 0
  fi
  say "deploy/ in nginx and Caddy: left out where they are not here (apt-get install nginx-light caddy)"
}

install_proxies() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -q -y --no-install-recommends nginx-light caddy
}

# The summary is pytest's own; its exit code 5 (nothing ran) is a failure like any other.
run_pytest() {
  title=$1
  shift
  begin=$(now)
  if "$bin/python" -m pytest --durations=5 "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  say "$title: $(since "$begin")"
}

check_everything() {
  check_sources
  check "clang-tidy" clang-tidy native_lint
  check "native tests" native-tests native_tests native -DCMAKE_BUILD_TYPE=Release
  check "native tests, sanitized" sanitized sanitized_tests
  if offer_valgrind; then check "instructions of a step" instructions count_steps; fi
  if offer_fuzzer; then check "fuzz targets, a few seconds each" fuzz fuzz_smoke; fi
  offer_proxies
  run_pytest "pytest" --cov=rebar.graph --cov-report=term --cov-fail-under=95 tests
  finish
}

check_fast() {
  check_sources
  run_pytest "pytest" tests
  finish
}

# The reference libraries live apart: what is served and tested by default never sees them.
prepare_parity() {
  parity=$root/.venv-parity
  wanted=$(cat pyproject.toml constraints.txt tools/parity-*.txt | sha256sum)
  [ "$(cat "$parity/stamp" 2>/dev/null)" = "$wanted" ] && return 0
  find_python && find_compiler
  (
    bin=$parity/bin
    if [ -f "$parity/installing" ] || ! "$bin/python" -m pip --version >/dev/null 2>&1; then
      rm -rf "$parity"
      phase "reference environment" parity-venv "$python" -m venv "$parity"
    fi
    : >"$parity/installing"
    phase "project in it" parity-project install_packages "[dev]"
    phase "reference libraries" parity-packages install_reference
    (phase "llama.cpp, from source" parity-llama install_llama_cpp) ||
      say "llama.cpp does not build here; what compares with it is left out"
    rm -f "$parity/installing"
  ) || exit 1
  echo "$wanted" >"$parity/stamp"
}

install_reference() { pip_install -r tools/parity-requirements.txt; }

# Without tile instructions: GCC 12's intrinsic for their configuration does not say what it reads, the stores before it vanish, and
# llama.cpp 0.3.36 ends with a segmentation fault on processors that have them. A cached wheel may have been built so.
install_llama_cpp() {
  flags=
  if echo | ${CXX:-c++} -mno-amx-tile -mno-amx-int8 -mno-amx-bf16 -E -x c++ - >/dev/null 2>&1; then
    flags='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'
  fi
  CMAKE_ARGS="${CMAKE_ARGS:-} '-DCMAKE_C_FLAGS=$flags' '-DCMAKE_CXX_FLAGS=$flags'"
  export CMAKE_ARGS
  pip_install --no-cache-dir -r tools/parity-llama.txt
}

check_parity() {
  started=$(now)
  prepare_parity
  bin=$root/.venv-parity/bin
  run_pytest "parity" -m parity tests "$@"
  finish
}

set_up_hooks() {
  hooks=$(git rev-parse --git-path hooks)
  mkdir -p "$hooks"
  printf '#!/bin/sh\n# Written by ./test setup-hooks.\nexec ./test lint\n' >"$hooks/pre-commit"
  chmod +x "$hooks/pre-commit"
  say "before each commit git now runs ./test lint; ./test format mends the format"
}
