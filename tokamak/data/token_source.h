// A source: one epoch of token ids that can be read at any place, perhaps while it is being made.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

namespace tokamak {

/// Thrown by waits whose stop_token fired; never leaves this folder.
struct Stopped {};

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  /// Waits until `end` tokens are there; returns that or more, or less: then it is the whole epoch.
  /// Throws Stopped.
  virtual int64_t wait_for(int64_t end, const std::stop_token& stop) = 0;

  /// Tokens of one epoch, or nothing while they are still being made. Any thread.
  virtual std::optional<int64_t> size() = 0;

  /// Tokens that are there now. Any thread.
  virtual int64_t tokens_so_far() { return size().value_or(0); }

  /// Copies the tokens from `first` on. REQUIRES: wait_for() said that they are there.
  virtual void read(int64_t first, std::span<int32_t> out) = 0;

  /// "FILE: token 17 (byte 34): id 70000", for messages.
  virtual std::string describe(int64_t index) = 0;

  /// true: the tail of one epoch is followed by the beginning of the next; false: it is dropped.
  virtual bool carries_tail() const = 0;

  /// The name the user wrote.
  virtual const std::string& name() const = 0;

  /// Changes when the tokens change.
  virtual uint64_t hash() const = 0;
};

}  // namespace tokamak
