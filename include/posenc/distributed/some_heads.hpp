// SPDX-License-Identifier: MIT
/// \file
/// An encoding seen by some of the heads it is made for: head h of a call is head h + first of the encoding. Every door
/// and every member that says what it is stays open. Needs no MPI.
#pragma once

#include <span>

#include <posenc/encoding.hpp>

namespace posenc::inline v0_2::detail::distributed {

/// Refers to the encoding.
template <class E>
class some_heads {
 public:
  some_heads(const E& encoding, index_t first, index_t count)
      : encoding_(&encoding), first_(static_cast<int>(first)), count_(count) {}

  template <class S>
  requires can_rotate_both<const E, S>
  void rotate(std::span<S> head, position p) const { encoding_->rotate(head, p); }
  template <class S>
  requires can_rotate_sides<const E, S>
  void rotate_query(std::span<S> head, position p) const { encoding_->rotate_query(head, p); }
  template <class S>
  requires can_rotate_sides<const E, S>
  void rotate_key(std::span<S> head, position p) const { encoding_->rotate_key(head, p); }
  template <class S>
  requires rotates_on_axes<E, S>
  void rotate_on_axes(std::span<S> head, const axis_positions& place) const {
    encoding_->rotate_on_axes(head, place);
  }
  void check_rotate(index_t head_dim, position p) const requires checks_rotate<E> {
    encoding_->check_rotate(head_dim, p);
  }
  [[nodiscard]] const rotation& lowered() const requires lowers_to_rotation<E> {
    return encoding_->lowered();
  }

  [[nodiscard]] auto bias(int head, position offset) const requires biases_by_offset<E> {
    return encoding_->bias(head + first_, offset);
  }
  [[nodiscard]] auto bias(int head, position query, position key) const requires can_bias_by_pair<const E> {
    return encoding_->bias(head + first_, query, key);
  }
  [[nodiscard]] bias_line linear_bias(int head) const requires has_linear_bias<E> {
    return encoding_->linear_bias(head + first_);
  }
  [[nodiscard]] position bias_reach() const requires has_bias_reach<E> { return encoding_->bias_reach(); }
  [[nodiscard]] index_t bias_heads() const requires has_bias_heads<E> {
    return encoding_->bias_heads() > 0 ? count_ : 0;
  }
  [[nodiscard]] auto relative_key(int head, position offset) const requires has_relative_key<E> {
    return encoding_->relative_key(head + first_, offset);
  }
  [[nodiscard]] auto relative_value(int head, position offset) const requires has_relative_value<E> {
    return encoding_->relative_value(head + first_, offset);
  }
  [[nodiscard]] auto scale(position query) const requires can_scale_all<const E> {
    return encoding_->scale(query);
  }
  [[nodiscard]] auto scale(int head, position query) const
      requires(can_scale_by_head<const E> && !can_scale_all<const E>) {
    return encoding_->scale(head + first_, query);
  }

 private:
  const E* encoding_;
  int first_;
  index_t count_;
};

}  // namespace posenc::inline v0_2::detail::distributed
