# For a tap of one's own: brew install OWNER/TAP/streamd. Not tried yet, for want of a Mac.
# At a release, set the url and the sha256 of the sdist that `make dist` prints.
class Streamd < Formula
  desc "Live captions from a Whisper model on your own machine"
  homepage "https://pypi.org/project/streamd-captions/"
  url "https://pypi.io/packages/source/s/streamd_captions/streamd_captions-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "MIT"

  depends_on "portaudio"
  depends_on "python@3.13"

  def install
    system "python3.13", "-m", "venv", libexec
    system libexec/"bin/pip", "install", buildpath
    bin.install_symlink libexec/"bin/streamd"
  end

  service do
    run [opt_bin/"streamd", "serve"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/streamd --version")
  end
end
