// What an engine does with the bytes of an object. The rest of it, in main.cpp, is the same on a CPU and on a GPU.
#pragma once

#include <chrono>
#include <memory>
#include <nanomc.hpp>

using Clock = std::chrono::steady_clock;

class Engine {
 public:
  virtual ~Engine() = default;
  // Stores every byte of the object and publishes it. Gives the time that this took, without the computing if that can
  // be told apart.
  virtual Clock::duration fill(nmc::WritePlan& plan) = 0;
  // Reads every byte of the object where it lies, and unpins it. Sets `right`, and gives the time of the reading.
  virtual Clock::duration check(nmc::View view, uint64_t key_hash, bool& right) = 0;
};

// An engine whose kernels store and read; throws if there is no GPU. In gpu.cu, which takes nvcc.
std::unique_ptr<Engine> gpu_engine();
