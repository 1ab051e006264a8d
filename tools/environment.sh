# Makes and checks .venv and the native module; read by ./run and ./test, which set $root and $name first.
# The law: `prepare` returns at once when nothing that matters has changed since it last ended well, and an install that
# was interrupted at any point is found by the next start and done again. POSIX sh; no tool but Python, a C++ compiler
# and what every Debian/Ubuntu has (coreutils, findutils, util-linux).

venv=$root/.venv
bin=$venv/bin
logs=$root/build/log

say() { printf '%s: %s\n' "$name" "$*" >&2; }

die() {
  say "$1"
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

# What was set up is described by the bytes of every file that decides it. About 10 ms.
fingerprint() {
  printf '%s\n' "$root" "$(uname -m)" "$(readlink -f "$bin/python" || echo none)"
  cd "$root" && find native tools/environment.sh CMakeLists.txt pyproject.toml constraints.txt -type f \
    ! -path '*/tests/*' ! -path '*/fuzz/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
}

# A minimal file shows which standard the compiler really speaks.
speaks_cxx20() {
  printf '#include <concepts>\n#include <span>\ntemplate <std::integral T> T f(T x) { return x; }\nint main() { return f(0); }\n' \
    | "$1" -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1
}

find_python() {
  for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return 0
  done
  return 1
}

find_compiler() {
  for compiler in ${CXX:-g++ clang++ c++}; do
    command -v "$compiler" >/dev/null 2>&1 && speaks_cxx20 "$compiler" && return 0
  done
  return 1
}

# Names everything that is missing at once, with the line that brings it.
check_machine() {
  packages=
  missing=
  if find_python; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    # Debian keeps pip's wheel and the headers apart from the interpreter; a distribution's own python3-* package
    # serves its default version only.
    prefix=python$version
    [ "$(readlink -f /usr/bin/python3 2>/dev/null)" = "/usr/bin/python$version" ] && prefix=python3
    "$python" -c 'import venv, ensurepip' 2>/dev/null || { missing="$missing, venv and pip"; packages="$packages $prefix-venv"; }
    [ -f "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
      { missing="$missing, the Python headers"; packages="$packages $prefix-dev"; }
  else
    missing=", Python 3.11 or newer"
    packages=" python3 python3-venv python3-dev"
  fi
  find_compiler || { missing="$missing, a C++20 compiler"; packages="$packages g++"; }
  [ -z "$missing" ] || die "this machine lacks ${missing#, }. On Debian 12 or Ubuntu 24.04 and later:" \
    "apt-get install -y$packages" "(as root, or with sudo; then start ./$name again)"
}

now() { date +%s%N; }

since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f s", (b - a) / 1e9 }'; }

# phase TITLE LOG COMMAND...: one line with the seconds; on a terminal the last line of output is shown meanwhile.
phase() {
  title=$1
  log=$logs/$2.log
  shift 2
  begin=$(now)
  if [ -t 2 ]; then
    { "$@" 2>&1 && echo 0 >"$log.rc" || echo 1 >"$log.rc"; } </dev/null | tee "$log" | show_last "$title"
  else
    "$@" </dev/null >"$log" 2>&1 && echo 0 >"$log.rc" || echo 1 >"$log.rc"
  fi
  if [ "$(cat "$log.rc")" -ne 0 ]; then
    tail -n 30 "$log" >&2
    die "$title failed. The whole log: $log" "Mend what it says, then start ./$name again."
  fi
  say "$title: $(since "$begin")"
}

show_last() {
  width=$(stty size <&2 2>/dev/null | cut -d' ' -f2)
  awk -v title="$name: $1" -v width="${width:-80}" \
    '{ gsub(/\t/, " "); printf "\r\033[K%s", substr(title ": " $0, 1, width - 1); fflush() } END { printf "\r\033[K" }' >&2
}

make_venv() { rm -rf "$venv" && "$python" -m venv "$venv"; }

pip_install() {
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1 \
    "$bin/python" -m pip install --progress-bar off -c constraints.txt "$@"
}

# The package index must be reachable once; later starts need no network.
# install_packages [EXTRA]: the project itself in place, without building the module a second time.
install_packages() {
  pip_install scikit-build-core nanobind cmake ninja &&
    pip_install --no-build-isolation --config-settings wheel.cmake=false --config-settings editable.mode=inplace -e ".$1"
}

# Python sources are used where they lie; the module is put beside them in one move, so that a running process keeps its own.
build_native() {
  PATH=$bin:$PATH
  CXX=$compiler
  export PATH CXX
  configure() { cmake -S . -B build/native -G Ninja -DCMAKE_BUILD_TYPE=Release -DRB_TESTS=OFF -DPython_EXECUTABLE="$bin/python" "$@"; }
  # A build folder of another compiler, place or Python is begun anew.
  configure || configure --fresh || return 1
  cmake --build build/native || return 1
  for made in build/native/_native*.so build/native/_native.pyi; do
    cp "$made" "build/${made##*/}.new" && mv "build/${made##*/}.new" "src/rebar/${made##*/}" || return 1
  done
}

prepare() {
  stamp=$venv/rebar.stamp
  if [ -f "$stamp" ] && [ "$(fingerprint)" = "$(cat "$stamp")" ]; then return 0; fi
  mkdir -p "$logs"
  (
    flock -n 9 || { say "another start is setting up; waiting for it"; flock 9; }
    if [ -f "$stamp" ] && [ "$(fingerprint)" = "$(cat "$stamp")" ]; then exit 0; fi
    cd "$root" && set_up
  ) 9>"$root/build/setup.lock" || exit 1
}

set_up() {
  check_machine
  began=$(now)
  rm -f "$stamp"
  # A mark that outlives an interrupted pip: such a .venv may hold half a package that looks whole.
  if [ -f "$venv/installing" ] || ! "$bin/python" -m pip --version >/dev/null 2>&1 ||
    [ "$(readlink -f "$bin/python")" != "$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')" ]; then
    phase "Python environment" venv make_venv
  fi
  : >"$venv/installing"
  phase "packages" packages install_packages ""
  rm -f "$venv/installing"
  phase "native module" native build_native
  fingerprint >"$stamp.new" && mv "$stamp.new" "$stamp"
  say "ready after $(since "$began")"
}
