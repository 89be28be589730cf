"""What training and inference read: records, shards, batches, masking."""
