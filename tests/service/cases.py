"""Where each case of the catalogue of failures is tested: `A-b4` and so on are its ids, from public
reports about servers of this kind. test_cases.py holds this table to the truth: each test that is
named here exists and names the case.
"""

from __future__ import annotations

GROUPS = {"a": 7, "b": 9, "c": 9, "d": 3, "e": 7, "f": 8, "g": 3, "h": 5, "j": 7, "k": 3, "l": 6}
"""Cases of each group: text, answers, bodies, clients, scheduling, files, templates, forms,
training and data, metrics, operation.
"""

LATER: dict[str, str] = {}
"""Cases about what does not exist yet, and why."""

# path, then the tests in it
TESTS: dict[str, dict[str, tuple[str, ...]]] = {
    "A-a1": {
        "service/test_answers.py": ("test_characters_split_over_tokens_arrive_whole",),
    },
    "A-a2": {
        "service/test_answers.py": ("test_space_does_not_cut_a_character",),
    },
    "A-a3": {
        "service/test_answers.py": ("test_end_inside_a_character",),
    },
    "A-a4": {
        "service/test_tools.py": ("test_no_place_of_a_caller_makes_control_tokens",),
        "service/test_prompts.py": ("test_raw_prompts_keep_control_tokens",),
    },
    "A-a5": {
        "service/test_prompts.py": ("test_beginning_of_text_comes_once",),
    },
    "A-a6": {
        "dataflow/test_bpe.py": (
            "test_each_pre_tokenizer_splits_its_own_way",
            "test_an_unknown_pre_tokenizer_is_refused_by_name",
        ),
    },
    "A-a7": {
        "service/test_real_models.py": ("test_smollm2_with_the_openai_client",),
        "service/test_prompts.py": ("test_long_text_is_refused_quickly_and_holds_nobody_up",),
        "dataflow/test_bpe.py": ("test_the_time_of_one_long_word_grows_with_its_length",),
    },
    "A-b1": {
        "service/test_answers.py": ("test_stop_string_never_leaks",),
    },
    "A-b2": {
        "service/test_streams.py": ("test_text_that_cannot_become_a_stop_is_not_held",),
        "dataflow/test_stream.py": ("test_only_the_beginning_of_a_stop_is_held",),
    },
    "A-b3": {
        "service/test_answers.py": (
            "test_finish_reason_at_the_last_token",
            "test_context_end_is_length",
        ),
    },
    "A-b4": {
        "service/test_tiny_exact.py": ("test_log_probabilities_are_numbers",),
    },
    "A-b5": {
        "service/test_tiny_exact.py": ("test_neighbours_and_order_do_not_reach_a_seeded_answer",),
    },
    "A-b6": {
        "service/test_answers.py": (
            "test_usage_in_a_stream",
            "test_stream_options_without_stream",
        ),
    },
    "A-b7": {
        "service/test_streams.py": (
            "test_failure_before_the_first_token_has_a_status",
            "test_failure_in_a_stream_is_told_and_ends_it",
        ),
        "service/test_tools.py": ("test_a_parser_that_fails_at_the_end_is_told",),
    },
    "A-b8": {
        "service/test_tiny_exact.py": ("test_tiny_temperatures_beside_a_normal_request",),
    },
    "A-b9": {
        "service/test_tools.py": ("test_streams_and_whole_answers_agree",),
    },
    "A-c1": {
        "service/test_hostile.py": ("test_depth_has_a_limit_of_our_own",),
    },
    "A-c2": {
        "service/test_hostile.py": (
            "test_numbers_out_of_range",
            "test_the_longest_answer_the_context_allows",
        ),
    },
    "A-c3": {
        "service/test_hostile.py": (
            "test_wrong_types",
            "test_no_stop",
        ),
    },
    "A-c4": {
        "service/test_hostile.py": ("test_prompt_ids",),
    },
    "A-c5": {
        "service/test_hostile.py": ("test_logit_bias",),
        "graph/test_sampling_edges.py": ("test_padding_is_never_sampled_nor_looked_at",),
    },
    "A-c6": {
        "service/test_hostile.py": (
            "test_empty_prompts",
            "test_empty_content_is_a_message",
            "test_echo_without_generation",
        ),
    },
    "A-c7": {
        "service/test_hostile.py": (
            "test_history_with_tool_calls",
            "test_broken_messages",
        ),
    },
    "A-c8": {
        "service/test_hostile.py": ("test_lone_surrogates_and_broken_utf8",),
    },
    "A-c9": {
        "service/test_hostile.py": (
            "test_declared_length_beyond_the_limit",
            "test_chunked_body_beyond_the_limit",
            "test_very_many_messages",
            "test_compressed_bodies",
        ),
        "service/test_protocol.py": ("test_a_head_without_end",),
    },
    "A-d1": {
        "service/test_streams.py": (
            "test_a_client_that_leaves_ends_its_work",
            "test_many_clients_leave_in_every_state",
        ),
    },
    "A-d2": {
        "service/test_limits.py": ("test_slow_readers_are_cut_off_and_nobody_else_is",),
    },
    "A-d3": {
        "service/test_server.py": (
            "test_signal_lets_a_short_stream_finish_and_ends_a_long_one",
            "test_second_signal_ends_at_once",
        ),
        "service/test_process_life.py": (
            "test_a_drain_lets_streams_end_and_takes_the_engine_along",
        ),
    },
    "A-e1": {
        "service/test_tiny_exact.py": ("test_pre_emption_changes_no_answer",),
    },
    "A-e2": {
        "service/test_prompts.py": ("test_a_request_larger_than_the_cache",),
    },
    "A-e3": {
        "service/test_tiny_exact.py": ("test_a_prompt_that_is_known_whole",),
    },
    "A-e4": {
        "service/test_adapters.py": ("test_new_weights_under_an_old_name_meet_no_old_keys",),
    },
    "A-e5": {
        "service/test_tiny_exact.py": ("test_batch_chunks_and_cache_change_no_bit",),
    },
    "A-e6": {
        "service/test_prompts.py": ("test_context_is_never_cut",),
    },
    "A-e7": {
        "service/test_urgency.py": (
            "test_a_high_request_does_not_wait_for_a_low_one",
            "test_a_low_request_is_not_starved",
        ),
        "service/test_scheduler_memory.py": ("test_the_low_age_and_are_not_overtaken_for_ever",),
    },
    "A-f1": {
        "graph/weights/test_gguf_hostile.py": (
            "test_counts_and_lengths_are_not_trusted",
            "test_nested_arrays",
            "test_truncated_anywhere",
        ),
        "service/test_real_models.py": ("test_a_hostile_file_leaves_the_model_that_serves_alone",),
    },
    "A-f2": {
        "graph/weights/test_gguf_hostile.py": (
            "test_the_tensor_table_is_not_trusted",
            "test_keys_are_checked",
        ),
    },
    "A-f3": {
        "graph/weights/test_gguf_hostile.py": (
            "test_alignment_rules",
            "test_a_key_twice",
        ),
    },
    "A-f4": {
        "graph/weights/test_gguf_hostile.py": ("test_big_endian_files_are_told_apart",),
        "graph/weights/test_hf_hostile.py": ("test_one_name_in_two_shards",),
    },
    "A-f5": {
        "graph/weights/test_hf_hostile.py": ("test_headers_are_not_trusted",),
    },
    "A-f6": {
        "graph/weights/test_hf_hostile.py": (
            "test_an_index_cannot_leave_its_folder",
            "test_index_values_must_be_names",
            "test_missing_and_extra_are_named",
        ),
    },
    "A-f7": {
        "graph/weights/test_hf_reading.py": (
            "test_tied_heads",
            "test_a_missing_head_is_an_error",
            "test_a_head_that_differs_beside_a_tie_is_an_error",
        ),
    },
    "A-f8": {
        "graph/weights/test_hf_hostile.py": ("test_pickles_are_refused_and_never_run",),
    },
    "A-g1": {
        "service/test_prompts.py": (
            "test_a_template_of_a_model_cannot_do_anything",
            "test_a_template_in_a_request_is_refused",
        ),
        "dataflow/test_chat.py": (
            "test_a_hostile_template_is_refused_before_it_costs",
            "test_messages_are_not_changed",
        ),
    },
    "A-g2": {
        "service/test_prompts.py": ("test_what_a_template_refuses",),
        "dataflow/test_chat.py": ("test_the_helpers_of_hugging_face_templates_work",),
    },
    "A-g3": {
        "service/test_prompts.py": (
            "test_every_message_is_in_the_prompt",
            "test_a_template_that_leaves_something_out_is_not_followed",
        ),
    },
    "A-h1": {
        "service/test_grammar_http.py": ("test_a_model_that_prefers_spaces",),
    },
    "A-h2": {
        "service/test_grammar_http.py": ("test_a_refusal_says_where",),
        "service/test_structured.py": ("test_what_cannot_be_compiled_is_a_400",),
    },
    "A-h3": {
        "service/test_structured.py": ("test_what_cannot_be_compiled_is_a_400",),
        "service/test_grammar_http.py": (
            "test_bad_constraints_leave_the_neighbour_alone",
            "test_any_json",
            "test_text_is_free",
        ),
    },
    "A-h4": {
        "service/test_grammar_http.py": ("test_order_of_properties_and_values_of_any_type",),
    },
    "A-h5": {
        "service/test_grammar_http.py": (
            "test_a_schema_that_refers_to_itself",
            "test_compiling_holds_nobody_up",
        ),
        "service/test_structured.py": ("test_what_cannot_be_compiled_is_a_400",),
    },
    "A-j1": {
        "graph/test_learner.py": ("test_windows_cut_into_micro_batches_learn_the_same",),
        "graph/test_trainer.py": (
            "test_a_window_is_one_whatever_it_was_cut_into",
            "test_the_last_window_weighs_its_own_tokens",
        ),
    },
    "A-j2": {
        "cli/test_finetune.py": ("test_data_without_an_answer_is_refused",),
        "dataflow/data/test_batches.py": ("test_what_is_cut_and_what_asks_nothing_is_counted",),
        "graph/test_learner.py": ("test_a_batch_without_a_supervised_token_adds_nothing",),
        "graph/test_trainer.py": (
            "test_a_window_is_one_whatever_it_was_cut_into",
            "test_a_window_without_supervision_is_no_step",
            "test_data_without_any_supervision_is_an_error",
        ),
    },
    "A-j3": {
        "cli/test_resume.py": (
            "test_a_run_cut_anywhere_is_the_run_never_stopped",
            "test_a_run_of_many_kills_is_the_run_of_none",
        ),
        "graph/test_trainer.py": ("test_a_run_that_was_stopped_goes_on_with_the_same_bits",),
    },
    "A-j4": {
        "graph/test_adapter_folder.py": (
            "test_the_scale_of_case_j4",
            "test_values_of_every_type_are_exact",
            "test_every_spelling_of_a_name_means_the_same",
            "test_what_cannot_be_served_is_refused_by_name",
        ),
        "graph/test_merge.py": (
            "test_merged_equals_unmerged",
            "test_merged_twice_is_refused_and_another_one_is_not",
            "test_the_way_back_is_the_base",
        ),
    },
    "A-j5": {
        "parity/test_collective.py": ("test_a_rank_that_ends_or_hangs_ends_all",),
        "parity/test_images_ranks.py": (
            "test_three_processes_train_one_network",
            "test_a_rank_that_fails_at_its_start_ends_all",
            "test_a_killed_rank_ends_all_and_they_go_on_with_the_same_bits",
        ),
        "parity/test_ranks.py": (
            "test_ranks_with_uneven_data_end_together",
            "test_a_dead_rank_ends_all_with_a_message",
        ),
    },
    "A-j6": {
        "dataflow/data/test_batches.py": ("test_broken_lines_by_rule",),
        "dataflow/data/test_index.py": (
            "test_case_j6",
            "test_files_without_records",
            "test_long_lines",
            "test_wide_characters_are_named",
            "test_an_error_says_file_and_line",
        ),
    },
    "A-j7": {
        "dataflow/data/test_pipeline.py": ("test_case_j7",),
        "parity/test_torch_loader.py": ("test_records",),
    },
    "A-k1": {
        "service/test_metrics_hostile.py": (
            "test_a_metric_that_raises_reaches_no_request",
            "test_counters_only_grow",
        ),
    },
    "A-k2": {
        "service/test_metrics_hostile.py": ("test_no_client_can_make_a_series",),
    },
    "A-k3": {
        "service/test_metrics_hostile.py": (
            "test_gauges_after_clients_that_left",
            "test_gauges_after_clients_that_left_at_the_last_token",
            "test_gauges_after_refusals_and_failures",
            "test_gauges_after_time_outs_and_a_full_queue",
            "test_what_is_known_is_counted_apart",
        ),
    },
    "A-l1": {
        "service/test_process_life.py": (
            "test_a_signal_at_any_moment_of_a_start",
            "test_an_engine_that_loads_ends_with_its_front",
            "test_a_checker_that_compiles_ends_with_its_front",
            "test_killed_under_load_and_started_again",
        ),
        "service/test_server.py": ("test_signal_while_loading_ends_it",),
    },
    "A-l2": {
        "graph/test_checkpoint.py": (
            "test_a_part_is_no_checkpoint",
            "test_broken_ones_are_named_and_passed_over",
            "test_a_disk_that_is_full_leaves_the_former_as_they_were",
            "test_a_kill_at_any_moment_costs_one_interval",
        ),
    },
    "A-l3": {
        "service/test_process_life.py": (
            "test_processes_start_while_threads_hold_every_lock",
            "test_no_process_is_forked",
        ),
    },
    "A-l4": {
        "service/test_adapters.py": ("test_loading_and_unloading_under_streams_harms_nobody",),
    },
    "A-l5": {
        "service/test_adapters.py": ("test_twenty_loads_of_one_name",),
    },
    "A-l6": {
        "service/test_process_life.py": (
            "test_a_taken_port_is_told_before_the_model_is_looked_at",
            "test_two_that_want_one_port",
        ),
        "service/test_server.py": ("test_idle_server_stops_quickly_and_its_port_is_free_again",),
    },
}
