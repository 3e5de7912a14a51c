"""What two processes exchange: commands, frames, and streams of frames over TCP or in memory."""
