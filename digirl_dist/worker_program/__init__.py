"""The resident program of a worker machine: runs the job's episodes, and keeps its folder."""
