"""Layer 2: text and ids, chat templates, model names and their converted files. No requests."""
