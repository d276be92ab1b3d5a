// The plugin libhaliax_mpi: a transport between ranks that uses MPI.
#include <mpi.h>

#include <chrono>
#include <climits>
#include <memory>
#include <mutex>
#include <thread>

#include "haliax/error.h"
#include "program/plugin.h"
#include "program/ranks.h"

namespace haliax::mpi {
namespace {

void require(int status, const char* what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw Error("[ranks] MPI: " + std::string(what) + ": " + std::string(text, std::size_t(length)));
}

// Ranks over MPI. No MPI call blocks, so one lock serializes all threads.
class MpiRanks final : public program::Ranks {
 public:
  MpiRanks() {
    int there = 0, provided = 0;
    MPI_Initialized(&there);
    if (there)
      MPI_Query_thread(&provided);
    else
      require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "start");
    if (provided < MPI_THREAD_SERIALIZED)
      throw Error(
          "[ranks] MPI was started for one thread only; "
          "call MPI_Init_thread with MPI_THREAD_SERIALIZED, or leave it to haliax");
    ours_ = !there;
    for (auto& c : channels_) {
      require(MPI_Comm_dup(MPI_COMM_WORLD, &c), "communicator");
      MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN);
    }
    MPI_Comm_rank(channels_[0], &rank_);
    MPI_Comm_size(channels_[0], &count_);
    char name[MPI_MAX_PROCESSOR_NAME];
    int length = 0;
    MPI_Get_processor_name(name, &length);
    where_.assign(name, std::size_t(length));
    MPI_Comm host = MPI_COMM_NULL;
    require(MPI_Comm_split_type(channels_[0], MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host),
            "the ranks of a host");
    MPI_Comm_rank(host, &local_rank_);
    MPI_Comm_free(&host);
    int* most = nullptr;
    int found = 0;
    MPI_Comm_get_attr(channels_[0], MPI_TAG_UB, &most, &found);
    tags_ = found && *most < INT_MAX ? *most + 1 : INT_MAX;
  }
  int rank() const override { return rank_; }
  int count() const override { return count_; }
  std::string where() const override { return where_; }
  int local_rank() const override { return local_rank_; }
  int tags() const override { return tags_; }

  Message send(Channel c, int to, int tag, const void* data, std::int64_t bytes) override {
    return begin(
        [&](MPI_Request* r) { return MPI_Isend(data, length(bytes), MPI_BYTE, to, tag, on(c), r); },
        "send");
  }
  Message receive(Channel c, int from, int tag, void* data, std::int64_t bytes) override {
    return begin(
        [&](MPI_Request* r) {
          return MPI_Irecv(data, length(bytes), MPI_BYTE, from, tag, on(c), r);
        },
        "receive");
  }
  bool done(Message& m) override {
    if (!m.handle) return true;
    auto* request = static_cast<MPI_Request*>(m.handle);
    int flag = 0;
    std::lock_guard hold(lock_);
    require(MPI_Test(request, &flag, MPI_STATUS_IGNORE), "message");
    if (!flag) return false;
    delete request;
    m.handle = nullptr;
    return true;
  }
  std::optional<Envelope> probe(Channel c, int from, int tag) override {
    int flag = 0, bytes = 0;
    MPI_Status s;
    std::lock_guard hold(lock_);
    require(
        MPI_Iprobe(from < 0 ? MPI_ANY_SOURCE : from, tag < 0 ? MPI_ANY_TAG : tag, on(c), &flag, &s),
        "probe");
    if (!flag) return {};
    MPI_Get_count(&s, MPI_BYTE, &bytes);
    return Envelope{s.MPI_SOURCE, s.MPI_TAG, bytes};
  }
  void leave(bool together) override {
    std::lock_guard hold(lock_);
    // blocks until all ranks call it; `together` guarantees that they do
    if (together && ours_) MPI_Finalize();
  }

 private:
  static int length(std::int64_t bytes) {
    if (bytes > INT_MAX)
      throw Error("[ranks] a message of " + std::to_string(bytes) + " bytes is too long for MPI");
    return int(bytes);
  }
  MPI_Comm on(Channel c) const { return channels_[int(c)]; }
  template <class F> Message begin(F f, const char* what) {
    auto request = std::make_unique<MPI_Request>();
    std::lock_guard hold(lock_);
    require(f(request.get()), what);
    return {request.release()};
  }
  std::mutex lock_;
  MPI_Comm channels_[3] = {MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_NULL};
  int rank_ = 0, count_ = 1, local_rank_ = 0, tags_ = 0;
  std::string where_;
  bool ours_ = true;
};

program::Ranks* ranks() {
  static auto* one = new MpiRanks;
  return one;
}

}  // namespace
}  // namespace haliax::mpi

const haliax::program::Plugin* haliax_plugin() {
  using namespace haliax;
  static const program::Plugin mine{program::library_version(), program::abi_hash(), nullptr,
                                    mpi::ranks};
  return &mine;
}
