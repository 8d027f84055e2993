#include "execute/test_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> allocations{0};
std::atomic<bool> counting{false};

void* counted(size_t bytes) noexcept {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}

}  // namespace

void* operator new(size_t bytes) {
  void* data = counted(bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
// std::stable_sort takes its buffer from this one.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, const std::nothrow_t&) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }

namespace mw::execute {

void start_counting_allocations() {
  allocations = 0;
  counting = true;
}

int64_t stop_counting_allocations() {
  counting = false;
  return allocations;
}

}  // namespace mw::execute
