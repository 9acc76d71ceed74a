"""Operations of the decoder: references in plain torch, which every faster kernel must equal."""
