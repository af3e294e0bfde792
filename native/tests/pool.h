// A thread pool as XLA's is: tasks in the order in which they come.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "team.h"

namespace headrace::test {

class Threads {
 public:
  explicit Threads(int count) {
    for (int i = 0; i < count; i++) threads_.emplace_back([this] { work(); });
  }
  ~Threads() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // For a caller beside the pool's own threads.
  Pool pool() {
    return {int(threads_.size()) + 1, [this](std::function<void()> task) {
              {
                std::lock_guard<std::mutex> lock(mutex_);
                tasks_.push_back(std::move(task));
              }
              ready_.notify_one();
            }};
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        ready_.wait(lock, [this] { return ended_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace headrace::test
