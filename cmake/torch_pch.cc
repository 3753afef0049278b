// Carries the precompiled cmake/torch_headers.h that the LibTorch targets share.
