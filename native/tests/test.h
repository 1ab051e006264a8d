// test.h: the whole test framework. TEST(area, name) { CHECK(...); }
#pragma once
#include <cstdio>
#include <string>
#include <vector>

struct TestCase {
  const char *area, *name;
  void (*run)();
};

std::vector<TestCase>& test_cases();
void test_failed(const char* file, int line, const std::string& what);
extern std::string test_context;  // printed with a failure: which format, shape, instruction set

#define TEST(area, name)                                                                                               \
  static void test_##area##_##name();                                                                                  \
  static const bool registered_##area##_##name = (test_cases().push_back({#area, #name, test_##area##_##name}), true); \
  static void test_##area##_##name()

#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) test_failed(__FILE__, __LINE__, #condition); \
  } while (false)
