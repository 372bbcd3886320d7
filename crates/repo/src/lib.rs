//! The repository: store, keys, packs, page maps, manifests, the log of runs.
