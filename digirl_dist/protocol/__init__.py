"""The wire between host and worker program: messages, the files of a job folder, tensor deltas."""
