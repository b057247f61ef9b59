/*
 * The log for C++17: lines about what happens in the background, such as a rank that dies. Without a callback the library
 * writes nothing anywhere. nmc::nothrow::Log is the same with results; see nanomc/core.hpp.
 *
 *   nmc::Log::set([](nmc::LogLevel level, std::string_view line) { std::clog << nmc::name(level) << ": " << line << '\n'; },
 *                 nmc::LogLevel::info);
 *   ...
 *   nmc::Log::clear();
 */
#ifndef NANOMC_LOG_HPP
#define NANOMC_LOG_HPP

#include <functional>
#include <list>
#include <mutex>
#include <string_view>

#include "nanomc/core.hpp"

namespace nmc {

/// How much is logged.
enum class LogLevel : int32_t {
  error = NMC_LOG_ERROR,
  warn = NMC_LOG_WARN,
  info = NMC_LOG_INFO,
  debug = NMC_LOG_DEBUG,
};

/// Name of a level, such as "warn".
inline const char* name(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::error: return "error";
    case LogLevel::warn: return "warn";
    case LogLevel::info: return "info";
    case LogLevel::debug: return "debug";
  }
  return "unknown";
}

/// Receives a log line; see nmc_log_fn. It is called on whichever thread logs, on several at once. What it throws is
/// dropped, since there is nobody to catch it.
using LogCallback = std::function<void(LogLevel level, std::string_view line)>;

namespace detail {
/// The callbacks that the library may be calling. One that was set before a call to replace() began is not called any more
/// when that returns: then it goes. Two threads may replace at once, so there can be more than one for a while.
class LogCallbacks {
 public:
  /// Sets the only callback of `next`, or none.
  static nmc_status_t replace(std::list<LogCallback> next, LogLevel max_level) {
    // Never destroyed: the library may log for as long as the program runs.
    static LogCallbacks& set = *new LogCallbacks;
    std::list<LogCallback> former;
    {
      const std::lock_guard<std::mutex> lock(set.mutex_);
      former.swap(set.callbacks_);
    }
    // Without the lock: this waits for a callback that is running, and that may be in here as well, to be told NMC_ERR_BUSY.
    const nmc_status_t status = nmc_log_set_callback(next.empty() ? nullptr : &call, static_cast<int32_t>(max_level),
                                                     next.empty() ? nullptr : &next.front());
    const std::lock_guard<std::mutex> lock(set.mutex_);
    set.callbacks_.splice(set.callbacks_.end(), status < 0 ? former : next);
    return status;
  }

 private:
  static void call(int32_t level, const char* line, void* user) {
    const LogCallback& callback = *static_cast<const LogCallback*>(user);
#if NMC_HPP_EXCEPTIONS
    try {
      callback(static_cast<LogLevel>(level), line);
    } catch (...) {  // must not reach the library
    }
#else
    callback(static_cast<LogLevel>(level), line);
#endif
  }

  std::mutex mutex_;
  std::list<LogCallback> callbacks_;
};
}  // namespace detail

/// The log of this process.
template <class Mode>
class BasicLog {
 public:
  template <class T>
  using Out = typename Mode::template Out<T>;

  /// Sends lines up to `max_level` to `callback`, which is kept until another one is set; an empty one ends logging. When it
  /// returns, the former callback is not running any more. From inside a callback it fails with NMC_ERR_BUSY.
  static Out<void> set(LogCallback callback, LogLevel max_level) {
    std::list<LogCallback> next;
    if (callback) next.push_back(std::move(callback));
    return Mode::done(detail::LogCallbacks::replace(std::move(next), max_level));
  }
  /// Ends logging.
  static Out<void> clear() { return set(nullptr, LogLevel::error); }
};

using Log = BasicLog<Throwing>;
namespace nothrow {
using Log = BasicLog<Returning>;
}  // namespace nothrow

}  // namespace nmc

#endif  // NANOMC_LOG_HPP
