// SPDX-License-Identifier: MIT
/// \file
/// nlohmann::json is compiled once for all test programs (json_once.cpp) instead of in every translation unit, of
/// whose compile time it was a third. Precompiled with the other headers that tests share.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#if !defined(POSENC_TESTS_JSON)
#define POSENC_TESTS_JSON extern template
#endif

POSENC_TESTS_JSON class nlohmann::basic_json<>;

// What reads a file, by names that another version need not have.
#if NLOHMANN_JSON_VERSION_MAJOR == 3 && NLOHMANN_JSON_VERSION_MINOR == 11
namespace nlohmann {
namespace detail {
POSENC_TESTS_JSON class iter_impl<const json>;
POSENC_TESTS_JSON class json_sax_dom_parser<json>;
POSENC_TESTS_JSON class json_sax_dom_callback_parser<json>;
POSENC_TESTS_JSON class serializer<json>;
POSENC_TESTS_JSON class lexer<json, input_stream_adapter>;
POSENC_TESTS_JSON class parser<json, input_stream_adapter>;
POSENC_TESTS_JSON class lexer<json, iterator_input_adapter<const char*>>;
POSENC_TESTS_JSON class parser<json, iterator_input_adapter<const char*>>;
POSENC_TESTS_JSON class lexer<json, iterator_input_adapter<std::string::const_iterator>>;
POSENC_TESTS_JSON class parser<json, iterator_input_adapter<std::string::const_iterator>>;
}  // namespace detail
}  // namespace nlohmann
#endif
