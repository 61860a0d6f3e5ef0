// A source is one epoch of token ids. It can be read at any place, perhaps while it is being made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace tokamak {

/// Thrown by waits whose stop_token fired; never leaves this folder.
struct Stopped {};

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  /// Waits until `end` tokens or the whole epoch are there, and returns how many are. A count below
  /// `end` is the size of the epoch. Throws Stopped.
  virtual int64_t wait_for(int64_t end, const std::stop_token& stop) = 0;

  /// Returns the tokens per epoch, or nothing while they are being made. Any thread may call it.
  virtual std::optional<int64_t> size() = 0;

  /// Returns the number of tokens that are there now. Any thread may call it.
  virtual int64_t tokens_so_far() { return size().value_or(0); }

  /// Returns which share of the epoch, 0 to 1, is there now, as far as it is known. Any thread may
  /// call it.
  virtual double share_so_far() { return size() ? 1.0 : 0.0; }

  /// Returns a number that grows while tokens are made, be it by another process. Any thread may
  /// call it.
  virtual int64_t progress() { return tokens_so_far(); }

  /// Copies the tokens from `first` on. REQUIRES: wait_for() reported them.
  virtual void read(int64_t first, std::span<int32_t> out) = 0;

  /// Returns ids with which the epoch begins, `count` or all that can be had without writing files.
  /// Throws Error where they cannot be read.
  virtual std::vector<int32_t> front(int64_t count) {
    std::vector<int32_t> ids(std::min(count, tokens_so_far()));
    read(0, ids);
    return ids;
  }

  /// Returns "FILE: token 17 (byte 34): id 70000" for that token, as read() gave it, for messages.
  virtual std::string describe(int64_t index, int32_t id) = 0;

  /// Whether the next epoch's beginning follows an epoch's tail; otherwise the tail is dropped.
  virtual bool carries_tail() const = 0;

  /// Returns the name the user wrote.
  virtual const std::string& name() const = 0;

  /// Changes when the tokens change.
  virtual uint64_t hash() const = 0;

  /// Lines for the user about what of the source is not read, or not as its name says.
  virtual std::vector<std::string> remarks() const { return {}; }
};

}  // namespace tokamak
