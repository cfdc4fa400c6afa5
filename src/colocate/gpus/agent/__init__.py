"""The GPU part of an agent: shares the GPUs of a node among pods, with the right GPU for the right pod."""
