// Shared: a value that many hold and few change. Copies share it; a step's buffers are as many as
// microbatches, their types and shardings as few as a stage's values.
#pragma once

#include <memory>
#include <utility>

namespace mw::pipeline {

template <typename T>
class Shared {
 public:
  Shared() : value_(standard()) {}
  explicit Shared(T value) : value_(std::make_shared<T>(std::move(value))) {}
  Shared& operator=(T value) {
    value_ = std::make_shared<T>(std::move(value));
    return *this;
  }

  const T& get() const { return *value_; }
  operator const T&() const { return *value_; }  // NOLINT: reads like the value itself.
  const T* operator->() const { return value_.get(); }
  // To change this holder's value alone.
  T& edit() {
    if (value_.use_count() != 1) value_ = std::make_shared<T>(*value_);
    return *value_;
  }
  friend bool operator==(const Shared& a, const Shared& b) {
    return a.value_ == b.value_ || *a.value_ == *b.value_;
  }

 private:
  static const std::shared_ptr<T>& standard() {
    static const std::shared_ptr<T> value = std::make_shared<T>();
    return value;
  }
  std::shared_ptr<T> value_;
};

}  // namespace mw::pipeline
