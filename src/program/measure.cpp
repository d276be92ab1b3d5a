#include "program/program.h"

namespace haliax::program {

double multiplications(const std::vector<Step>& steps) {
  double sum = 0;
  for (auto& s : steps) {
    if (s.kind == Kind::loop) sum += double(s.loop.trips) * multiplications(s.loop.body);
    if (s.kind != Kind::contract) continue;
    double n = 1;
    for (auto* part : {&s.contract.batch, &s.contract.m, &s.contract.n, &s.contract.k}) for (auto d : *part) n *= double(d);
    sum += n;
  }
  return sum;
}
int count_contractions(const std::vector<Step>& steps, bool once) {
  int n = 0;
  for (auto& s : steps)
    if (s.kind == Kind::contract) ++n;
    else if (s.kind == Kind::loop) n += int(once ? 1 : s.loop.trips) * count_contractions(s.loop.body, once);
  return n;
}

}  // namespace haliax::program
