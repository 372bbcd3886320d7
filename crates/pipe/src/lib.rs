//! What happens to bytes between source and repository: codecs, sealing, hashing, queues, meters.
