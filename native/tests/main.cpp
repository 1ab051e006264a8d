// main.cpp: runs the tests of one area, or all. Exit status 1 when one fails, 2 when nothing was run.
#include <cstring>

#include "test.h"

std::string test_context;
static int failures = 0;

std::vector<TestCase>& test_cases() {
  static std::vector<TestCase> cases;
  return cases;
}

void test_failed(const char* file, int line, const std::string& what) {
  if (++failures <= 20) std::fprintf(stderr, "%s:%d: %s  [%s]\n", file, line, what.c_str(), test_context.c_str());
}

int main(int argc, char** argv) {
  int ran = 0;
  for (const TestCase& test : test_cases()) {
    if (argc > 1 && std::strcmp(argv[1], test.area) != 0) continue;
    const int before = failures;
    test_context.clear();
    test.run();
    ++ran;
    std::printf("%s %s.%s\n", failures == before ? "ok  " : "FAIL", test.area, test.name);
  }
  if (failures > 0) std::fprintf(stderr, "%d checks failed\n", failures);
  return ran == 0 ? 2 : failures > 0 ? 1 : 0;
}
