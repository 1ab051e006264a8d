"""Where each case of the catalogue of failures is tested: `A-b4` and so on are its ids, known from
public reports about servers of this kind. test_cases.py holds this table to the truth.

A test stands here as `path::function`, the path from tests/.
"""

from __future__ import annotations

HTTP = "service/test_"
WEIGHTS = "graph/weights/test_"

# fmt: off
TESTS: dict[str, tuple[str, ...]] = {
    # (a) text and control tokens
    "A-a1": ("service/test_answers.py::test_characters_split_over_tokens_arrive_whole",),
    "A-a2": ("service/test_answers.py::test_space_does_not_cut_a_character",),
    "A-a3": ("service/test_answers.py::test_end_inside_a_character",),
    "A-a4": ("service/test_tools.py::test_no_place_of_a_caller_makes_control_tokens",
             "service/test_prompts.py::test_raw_prompts_keep_control_tokens"),
    "A-a5": ("service/test_prompts.py::test_beginning_of_text_comes_once",),
    "A-a6": ("graph/weights/test_gguf_reading.py::test_pre_tokenizers_by_name",),
    "A-a7": ("service/test_real_models.py::test_smollm2_with_the_openai_client",
             "dataflow/test_bpe.py::test_time_is_linear"),
    # (b) ends, budgets, scores, seeds, bills
    "A-b1": ("service/test_answers.py::test_stop_string_never_leaks",),
    "A-b2": ("service/test_streams.py::test_text_that_cannot_become_a_stop_is_not_held",),
    "A-b3": ("service/test_answers.py::test_finish_reason_at_the_last_token",
             "service/test_answers.py::test_context_end_is_length"),
    "A-b4": ("service/test_tiny_exact.py::test_log_probabilities_are_numbers",),
    "A-b5": ("service/test_tiny_exact.py::test_neighbours_and_order_do_not_reach_a_seeded_answer",),
    "A-b6": ("service/test_answers.py::test_usage_in_a_stream",
             "service/test_answers.py::test_stream_options_without_stream"),
    "A-b7": ("service/test_streams.py::test_failure_before_the_first_token_has_a_status",
             "service/test_streams.py::test_failure_in_a_stream_is_told_and_ends_it",
             "service/test_tools.py::test_a_parser_that_fails_at_the_end_is_told"),
    "A-b8": ("service/test_tiny_exact.py::test_tiny_temperatures_beside_a_normal_request",),
    "A-b9": ("service/test_tools.py::test_streams_and_whole_answers_agree",),
}
# fmt: on
