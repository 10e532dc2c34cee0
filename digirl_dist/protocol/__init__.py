"""What host and worker program exchange: messages, the files of a job folder, differences of tensors."""
