"""What a configuration of mergekit says, as a merge of ours."""
