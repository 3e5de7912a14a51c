"""The house rules: layers, lengths, language, pages, citations."""
