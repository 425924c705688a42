// SPDX-License-Identifier: MIT
/// \file
/// Ranks agree before anything is sent, and once more when all is computed: where one is wrong, all throw the same
/// sentence. What is sent for it while all is well is one all-reduce of 24 bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <mpi.h>

#include <posenc/attention/options.hpp>
#include <posenc/distributed/context.hpp>
#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/fused/problem.hpp>
#include <posenc/parameters.hpp>
#include <posenc/version.hpp>

namespace posenc::inline v0_2::detail::distributed {

/// What went wrong on this rank.
struct failure {
  enum class kind : std::uint8_t { none, invalid_argument, out_of_range, other };
  kind of = kind::none;
  std::string sentence{};  ///< without "posenc: "
};

/// Runs f and keeps what it throws. A failure that is there already stays.
template <class F>
void keep_failure(failure& kept, const F& f) {
#if defined(__cpp_exceptions)
  const auto keep = [&kept](failure::kind of, std::string_view words) {
    constexpr std::string_view ours = "posenc: ";
    if (words.substr(0, ours.size()) == ours) words.remove_prefix(ours.size());
    kept = {of, std::string(words)};
  };
  if (kept.of != failure::kind::none) return;
  try {
    f();
  } catch (const std::invalid_argument& e) {
    keep(failure::kind::invalid_argument, e.what());
  } catch (const std::out_of_range& e) {
    keep(failure::kind::out_of_range, e.what());
  } catch (const std::exception& e) {
    keep(failure::kind::other, e.what());
  } catch (...) {
    keep(failure::kind::other, "an exception that is no std::exception");
  }
#else
  (void)kept;
  f();
#endif
}

/// FNV-1a, a word at a time.
class digest {
 public:
  void add(std::uint64_t word) noexcept {
    for (int byte = 0; byte < 8; ++byte) value_ = (value_ ^ ((word >> (8 * byte)) & 255u)) * 0x100000001b3u;
  }
  void add(double number) noexcept { add(std::bit_cast<std::uint64_t>(number)); }
  void add(std::string_view text) noexcept {
    for (const char c : text) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

/// Something that has to be the same on all ranks.
struct fact {
  enum class form : std::uint8_t { number, real, version, operation, opaque };
  const char* name;
  std::uint64_t bits = 0;
  form as = form::opaque;

  [[nodiscard]] static std::string text_of(form as, std::uint64_t bits) {
    static constexpr const char* operations[] = {"attention_into", "decode_into", "attention_by_heads_into",
                                                 "attention_backward_into"};
    std::string text;
    if (as == form::number) append(text, static_cast<std::int64_t>(bits));
    if (as == form::real) append(text, std::bit_cast<double>(bits));
    if (as == form::operation) text = operations[bits];
    if (as == form::version) {
      append(text, bits >> 32), append(text, "."), append(text, bits >> 16 & 0xffffu), append(text, ".");
      append(text, bits & 0xffffu);
    }
    return text;
  }
};

enum class operation : std::uint64_t { prefill, decode, by_heads, backward };

class fact_list {
 public:
  explicit fact_list(operation what) {
    add("the version of posenc",
        std::uint64_t{POSENC_VERSION_MAJOR} << 32 | std::uint64_t{POSENC_VERSION_MINOR} << 16 |
            std::uint64_t{POSENC_VERSION_PATCH},
        fact::form::version);
    add("the function", static_cast<std::uint64_t>(what), fact::form::operation);
  }
  void add(const char* name, std::uint64_t bits, fact::form as) { facts_.push_back({name, bits, as}); }
  void number(const char* name, std::int64_t value) {
    add(name, static_cast<std::uint64_t>(value), fact::form::number);
  }
  void real(const char* name, double value) {
    add(name, std::bit_cast<std::uint64_t>(value), fact::form::real);
  }
  void opaque(const char* name, const digest& d) { add(name, d.value(), fact::form::opaque); }
  template <class T>
  void maybe(const char* name, const std::optional<T>& value) {
    number(name, value ? static_cast<std::int64_t>(*value) : -1);
  }
  [[nodiscard]] std::span<const fact> all() const noexcept { return facts_; }
  [[nodiscard]] std::uint64_t value() const noexcept {
    digest all;
    for (const fact& one : facts_) all.add(one.bits);
    return all.value();
  }

 private:
  std::vector<fact> facts_;
};

[[nodiscard]] inline digest digest_of(const mpi::split& rows) {
  digest d;
  for (index_t rank = 0; rank < rows.ranks(); ++rank) {
    d.add(static_cast<std::uint64_t>(rank));
    for (const row_range& piece : rows.pieces(rank))
      d.add(static_cast<std::uint64_t>(piece.begin)), d.add(static_cast<std::uint64_t>(piece.end));
  }
  return d;
}
[[nodiscard]] inline digest digest_of(const positions& at) {
  digest d;
  d.add(std::uint64_t{at.given()} | std::uint64_t{at.is_run()} << 1 | std::uint64_t{at.has_axes()} << 2);
  if (at.is_run() || at.ring_split() > 0) d.add(static_cast<std::uint64_t>(at[0]));
  d.add(static_cast<std::uint64_t>(at.ring_split()));
  for (const position p : at.explicit_positions()) d.add(static_cast<std::uint64_t>(p));
  for (const axis_positions& place : at.axes())
    for (const position p : place) d.add(static_cast<std::uint64_t>(p));
  return d;
}
[[nodiscard]] inline digest digest_of(std::span<const double> numbers) {
  digest d;
  for (const double x : numbers) d.add(x);
  return d;
}
/// Lists and shapes; not what dense masks hold, nor what a function does.
[[nodiscard]] inline digest digest_of(const visibility& visible) {
  digest d;
  if (visible.empty()) return d;
  const visibility_parts& p = visible.parts();
  const auto rows = [&d](const auto& list) {
    d.add(std::uint64_t{list.size()});
    for (const auto& one : list) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(one)>, row_range>)
        d.add(static_cast<std::uint64_t>(one.begin)), d.add(static_cast<std::uint64_t>(one.end));
      else
        d.add(static_cast<std::uint64_t>(one));
    }
  };
  rows(p.query_documents), rows(p.key_documents), rows(p.blocks), rows(p.ranges), rows(p.tree);
  d.add(static_cast<std::uint64_t>(p.blocks_and_window));
  d.add(static_cast<std::uint64_t>(p.drafts));
  for (const dense_scores_data* dense : {&p.mask, &p.bias}) {
    d.add(static_cast<std::uint64_t>(dense->type));
    d.add(static_cast<std::uint64_t>(dense->shape.heads));
    d.add(static_cast<std::uint64_t>(dense->shape.queries));
    d.add(static_cast<std::uint64_t>(dense->shape.keys));
  }
  d.add(std::uint64_t{static_cast<bool>(p.where)});
  return d;
}

template <class E>
[[nodiscard]] std::string_view name_of_type() {
  return __PRETTY_FUNCTION__;  // also where there is no run-time type information
}
inline void add_rotation(digest& d, const rotation& r) {
  for (const index_t n : {r.head_dim, r.offset, r.rotary_dim, static_cast<index_t>(r.pairing)})
    d.add(static_cast<std::uint64_t>(n));
  for (const phase& p : r.phase_per_token) d.add(p.hi), d.add(p.lo);
  d.add(r.attention_factor);
  for (const float w : r.framework_frequencies) d.add(static_cast<double>(w));
  for (const axis_positions& place : r.axis_positions_of_token)
    for (const position p : place) d.add(static_cast<std::uint64_t>(p));
}
/// Its type and its numbers, as far as it says them.
template <class E>
void add_encoding(digest& d, const E& encoding) {
  d.add(name_of_type<E>());
  if constexpr (lowers_to_rotation<E>) add_rotation(d, encoding.lowered());
  if constexpr (has_parameters<E>) {
    const parameter_list<double> parameters = encoding.parameters();
    for (const double x : parameters.values()) d.add(x);
  }
  if constexpr (requires { encoding.first, encoding.second; })
    add_encoding(d, encoding.first), add_encoding(d, encoding.second);
}

/// What options and encoding say.
template <class E>
void add_call(fact_list& facts, const attention_options& o, const E& encoding) {
  facts.number("heads", o.heads), facts.number("kv_heads", o.kv_heads.value_or(o.heads));
  facts.maybe("head_dim", o.head_dim), facts.maybe("value_dim", o.value_dim);
  facts.number("mask", static_cast<std::int64_t>(o.mask));
  facts.maybe("window.lookback", o.window.lookback), facts.maybe("window.lookahead", o.window.lookahead);
  facts.maybe("chunk", o.chunk), facts.number("first_query_row", o.first_query_row.value_or(position_limit));
  facts.real("scale", o.scale.value_or(0)), facts.real("softcap", o.softcap);
  facts.opaque("head_scales", digest_of(o.head_scales)), facts.opaque("sinks", digest_of(o.sinks));
  facts.maybe("context_length", o.context_length);
  facts.number("keys_are_rotated", o.keys_are_rotated), facts.number("is_embedded", o.is_embedded);
  facts.opaque("query_positions", digest_of(o.query_positions));
  facts.opaque("key_positions", digest_of(o.key_positions));
  facts.opaque("visible", digest_of(o.visible));
  for (const auto* range : {&o.valid_keys, &o.valid_queries}) {
    digest d;
    if (*range)
      d.add(static_cast<std::uint64_t>((*range)->begin)), d.add(static_cast<std::uint64_t>((*range)->end));
    facts.opaque(range == &o.valid_keys ? "valid_keys" : "valid_queries", d);
  }
  digest d;
  with_concrete(encoding, [&](const auto& one) { add_encoding(d, one); });
  facts.opaque("the encoding", d);
}

/// Throws what a rank found wrong, on every rank.
[[noreturn]] inline void fail_everywhere(const mpi::context& ring, const failure& own, int root) {
  std::uint64_t header[2] = {static_cast<std::uint64_t>(own.of), own.sentence.size()};
  check(MPI_Bcast(header, 2, MPI_UINT64_T, root, ring.communicator()), "MPI_Bcast");
  std::string sentence = own.sentence;
  sentence.resize(header[1]);
  check(MPI_Bcast(sentence.data(), static_cast<int>(header[1]), MPI_CHAR, root, ring.communicator()),
        "MPI_Bcast");
  const auto of = static_cast<failure::kind>(header[0]);
  if (of == failure::kind::invalid_argument) raise<std::invalid_argument>(sentence_of(sentence));
  if (of == failure::kind::out_of_range) raise<std::out_of_range>(sentence_of(sentence));
  raise<std::runtime_error>(sentence_of(sentence));
}

/// A failure as others read it.
[[nodiscard]] inline failure named(failure own, index_t rank) {
  std::string sentence = "mpi: on rank ";
  append(sentence, static_cast<std::int64_t>(rank)), sentence += ": ", sentence += own.sentence;
  return {own.of, std::move(sentence)};
}

/// Finds a fact that a rank and rank 0 have different, and throws it on every rank.
[[noreturn]] inline void fail_by_difference(const mpi::context& ring, const fact_list& own) {
  const auto facts = own.all();
  std::uint64_t count = facts.size();
  check(MPI_Bcast(&count, 1, MPI_UINT64_T, 0, ring.communicator()), "MPI_Bcast");
  std::vector<std::uint64_t> first(count);
  if (ring.rank() == 0)
    for (std::size_t n = 0; n < count; ++n) first[n] = facts[n].bits;
  check(MPI_Bcast(first.data(), static_cast<int>(count), MPI_UINT64_T, 0, ring.communicator()), "MPI_Bcast");
  std::size_t at = 0;
  while (at < facts.size() && at < count && facts[at].bits == first[at]) ++at;
  const bool differs = at < facts.size() || at < count;
  int mine = static_cast<int>(differs ? ring.rank() : ring.ranks()), root = 0;
  check(MPI_Allreduce(&mine, &root, 1, MPI_INT, MPI_MIN, ring.communicator()), "MPI_Allreduce");
  failure found{failure::kind::invalid_argument, "mpi: ranks differ"};
  if (mine == root && differs && at < facts.size() && at < count) {
    const fact& one = facts[at];
    const std::string rank = std::to_string(root);
    found.sentence = one.as == fact::form::opaque
                         ? "mpi: rank " + rank + " and rank 0 differ in " + one.name
                         : "mpi: " + std::string(one.name) + " is " + fact::text_of(one.as, one.bits) +
                               " on rank " + rank + " and " + fact::text_of(one.as, first[at]) + " on rank 0";
  }
  fail_everywhere(ring, found, root < static_cast<int>(ring.ranks()) ? root : 0);
}

/// Returns where all ranks have the same facts and none has failed, else throws the same on all of them.
inline void agree(const mpi::context& ring, const fact_list& facts, const failure& own) {
  const std::uint64_t value = facts.value();
  const bool failed = own.of != failure::kind::none;
  const std::uint64_t mine[3] = {
      value, ~value, failed ? static_cast<std::uint64_t>(ring.ranks() - ring.rank()) : std::uint64_t{0}};
  std::uint64_t most[3] = {};
  check(MPI_Allreduce(mine, most, 3, MPI_UINT64_T, MPI_MAX, ring.communicator()), "MPI_Allreduce");
  if (most[2] > 0)
    fail_everywhere(ring, named(own, ring.rank()),
                    static_cast<int>(ring.ranks() - static_cast<index_t>(most[2])));
  if (most[0] != ~most[1]) fail_by_difference(ring, facts);
}

/// Refuses a call by a thread that may not talk to MPI. Only this rank can know.
inline void check_thread() {
  int level = 0, is_main = 1;
  MPI_Query_thread(&level);
  if (level == MPI_THREAD_FUNNELED) MPI_Is_thread_main(&is_main);
  require(is_main != 0,
          "mpi: MPI runs with MPI_THREAD_FUNNELED and this is not the thread that initialised it");
}

}  // namespace posenc::inline v0_2::detail::distributed
