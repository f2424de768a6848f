"""What a KV format costs in accuracy: samples, arms, paired comparison."""
