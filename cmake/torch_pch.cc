// Carries the precompiled <torch/torch.h> that every LibTorch target shares.
